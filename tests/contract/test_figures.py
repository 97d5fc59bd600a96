"""What is counted with results: together with them, once, and in words that plots need."""

import pytest
from sqlalchemy import select, update

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.errors import LeaseLost
from tasks.figures import history, latency_bound_ms, model_speed, rate, tally
from tasks.jobs import get_job
from tasks.tables import Progress, TallySubject
from tests.samples import answer, change_chunks, change_job, leased, started_job


def recorded(backends: Backends) -> str:
    """A job with four results of two kinds of failure; its id."""
    job_id = started_job(backends, 4)
    outcomes = [
        answer(0, input_tokens=10, output_tokens=30, duration_ms=3),
        answer(1, status_code=400, duration_ms=100),
        answer(2, status_code=400, duration_ms=128),
        answer(3, status_code=None, error_code="engine_crash"),
    ]
    record_results(backends.database, leased(backends, job_id), outcomes, worker="w", lease_s=30, finish=True)
    return job_id


def test_tallies_add_up_to_the_counters(backends: Backends) -> None:
    job_id = recorded(backends)
    job = get_job(backends.database, job_id)
    failures = tally(backends.database, job_id, TallySubject.FAILURE)
    assert failures == {"400": 2, "engine_crash": 1}
    assert sum(failures.values()) == job.failed
    # One that never came back says nothing of how long requests take.
    assert tally(backends.database, job_id, TallySubject.LATENCY) == {"4": 1, "128": 2}
    (point,) = history(backends.database, job_id)
    assert (point.requests, point.failed, point.input_tokens + point.output_tokens) == (4, 3, 40)


def test_a_writer_that_lost_its_lease_counts_nothing(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    lease = leased(backends, job_id)
    change_chunks(backends, job_id, lease_token=lease.token + 1)
    with pytest.raises(LeaseLost):
        record_results(backends.database, lease, [answer(0)], worker="w", lease_s=30, finish=True)
    assert history(backends.database, job_id) == []
    assert tally(backends.database, job_id, TallySubject.LATENCY) == {}


def test_a_second_record_of_the_same_result_counts_once(backends: Backends) -> None:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    for _ in range(2):
        record_results(
            backends.database, lease, [answer(0, output_tokens=5)], worker="w", lease_s=30, finish=False
        )
    (point,) = history(backends.database, job_id)
    assert (point.requests, point.output_tokens) == (1, 5)
    assert get_job(backends.database, job_id).completed == 1


def test_stretches_of_different_width_become_one_course(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    job_id = started_job(backends, 1)
    with backends.database.write() as session:
        for start_ms, width_ms, requests in ((0, 1_000, 3), (9_000, 1_000, 4), (10_000, 10_000, 5)):
            session.add(
                Progress(
                    job_id=job_id,
                    start_ms=start_ms,
                    width_ms=width_ms,
                    requests=requests,
                    failed=0,
                    input_tokens=1,
                    output_tokens=1,
                )
            )
    points = history(backends.database, job_id)
    assert [(point.start_ms, point.width_ms, point.requests) for point in points] == [
        (0, 10_000, 7),
        (10_000, 10_000, 5),
    ]


def test_a_rate_needs_results_and_says_what_is_left(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    job_id = started_job(backends, 40)
    assert rate(backends.database, get_job(backends.database, job_id)).left_s is None
    lease = leased(backends, job_id)
    record_results(
        backends.database, lease, [answer(n) for n in range(10)], worker="w", lease_s=30, finish=False
    )
    now = rate(backends.database, get_job(backends.database, job_id))
    assert now.requests_per_s > 0
    assert now.left_s == pytest.approx(30 / now.requests_per_s)
    assert model_speed(backends.database, "sim") is None  # no tokens so far
    change_job(backends, job_id, status="completed", created_ms=1, in_progress_ms=1_000, completed_ms=3_000)
    ended = rate(backends.database, get_job(backends.database, job_id))
    assert (ended.requests_per_s, ended.left_s) == (5.0, 0.0)


@pytest.mark.parametrize(
    ("took_ms", "bound_ms"), [(0, 1), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)]
)
def test_latency_buckets_double(took_ms: int, bound_ms: int) -> None:
    assert latency_bound_ms(took_ms) == bound_ms


def test_a_models_speed_is_that_of_its_last_stretches(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    job_id = recorded(backends)
    assert model_speed(backends.database, "sim") == 40.0
    assert model_speed(backends.database, "other") is None
    with backends.database.write() as session:
        session.execute(update(Progress).values(output_tokens=130))
        assert len(session.scalars(select(Progress)).all()) == 1
    assert model_speed(backends.database, "sim") == 140.0
    assert job_id
