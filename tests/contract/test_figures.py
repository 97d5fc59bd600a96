"""What is counted with results: together with them, once, and in words that plots need."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from sqlalchemy import select, update

from tasks.backends import Backends
from tasks.chunks import add_results, record_results, release_chunk
from tasks.errors import LeaseLost
from tasks.figures import history, latency_bound_ms, model_speed, rate, stretch, tally
from tasks.finalise import settle
from tasks.jobs import cancel_job, get_job
from tasks.tables import JobStatus, Progress, TallySubject
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


def test_figures_are_undone_together_with_their_results(backends: Backends) -> None:
    job_id = started_job(backends, 2)

    def count_and_fail() -> None:
        with backends.database.write() as session:
            add_results(session, job_id, 0, [answer(0), answer(1, status_code=400)], "w")
            raise ConnectionError

    with pytest.raises(ConnectionError):
        count_and_fail()
    assert history(backends.database, job_id) == []
    assert tally(backends.database, job_id, TallySubject.FAILURE) == {}
    assert get_job(backends.database, job_id).failed == 0


def test_workers_that_record_at_once_lose_no_count(backends: Backends) -> None:
    at_once = 6
    job_id = started_job(backends, 2 * at_once, per_chunk=2)
    leases = [leased(backends, job_id, seq, f"worker-{seq}") for seq in range(at_once)]
    begin = threading.Barrier(at_once)

    def record(place: int) -> None:
        begin.wait()
        # Each in another order of kinds than its neighbour.
        kinds = [200, 400] if place % 2 else [400, 200]
        outcomes = [answer(2 * place + n, status_code=kinds[n], output_tokens=3) for n in (0, 1)]
        record_results(backends.database, leases[place], outcomes, worker="w", lease_s=30, finish=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(record, range(at_once)))
    assert tally(backends.database, job_id, TallySubject.FAILURE) == {"400": at_once}
    assert tally(backends.database, job_id, TallySubject.LATENCY) == {"1": 2 * at_once}
    points = history(backends.database, job_id)
    assert sum(point.requests for point in points) == 2 * at_once
    assert sum(point.output_tokens for point in points) == 6 * at_once


def test_what_never_ran_is_a_failure_but_no_progress(backends: Backends) -> None:
    job_id = started_job(backends, 100)
    lease = leased(backends, job_id)
    record_results(backends.database, lease, [answer(0)], worker="w", lease_s=30, finish=False)
    cancel_job(backends.database, job_id)
    release_chunk(backends.database, lease, attempts=1)
    assert settle(backends, job_id) == JobStatus.CANCELLED
    assert tally(backends.database, job_id, TallySubject.FAILURE) == {"batch_cancelled": 99}
    assert sum(point.requests for point in history(backends.database, job_id)) == 1
    change_job(backends, job_id, created_ms=1, in_progress_ms=1_000, cancelled_ms=3_000, finalizing_ms=None)
    ended = rate(backends.database, get_job(backends.database, job_id))
    assert (ended.requests_per_s, ended.left_s) == (0.5, 0.0)


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


@pytest.mark.parametrize("began_ms", [0, 1, 7_777, 59_999, 1_796_138_298_123])
def test_stretches_of_a_job_grow_and_never_overlap(began_ms: int) -> None:
    ages_ms = [*range(0, 700_000, 333), *range(7_100_000, 7_400_000, 3_333), 7 * 86_400_000]
    found = sorted({stretch(began_ms, began_ms + age_ms) for age_ms in ages_ms})
    assert {width_ms for _, width_ms in found} == {1_000, 10_000, 60_000}
    for (start_ms, width_ms), (next_ms, next_width_ms) in pairwise(found):
        assert start_ms + width_ms <= next_ms
        assert width_ms <= next_width_ms
    for age_ms in ages_ms:
        start_ms, width_ms = stretch(began_ms, began_ms + age_ms)
        assert 0 <= began_ms + age_ms - start_ms < width_ms


def test_a_models_speed_is_that_of_its_jobs_together(backends: Backends) -> None:
    young, old = started_job(backends, 1), started_job(backends, 1)
    with backends.database.write() as session:
        # Ten seconds, in which either of them did a hundred tokens a second.
        rows = [(young, 20_000 + 1_000 * second, 1_000, 100) for second in range(10)]
        for job_id, start_ms, width_ms, tokens in [*rows, (old, 20_000, 10_000, 1_000)]:
            session.add(
                Progress(
                    job_id=job_id,
                    start_ms=start_ms,
                    width_ms=width_ms,
                    requests=1,
                    failed=0,
                    input_tokens=0,
                    output_tokens=tokens,
                )
            )
    assert model_speed(backends.database, "sim") == 200.0


def test_a_models_speed_is_that_of_its_last_stretches(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    recorded(backends)
    assert model_speed(backends.database, "sim") == 40.0
    assert model_speed(backends.database, "other") is None
    with backends.database.write() as session:
        session.execute(update(Progress).values(output_tokens=130))
        assert len(session.scalars(select(Progress)).all()) == 1
    assert model_speed(backends.database, "sim") == 140.0
