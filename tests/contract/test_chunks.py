"""The life of a chunk: one lease at a time, results written under it, counters exact."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select

from tasks.backends import Backends
from tasks.chunks import Lease, lease_chunk, record_results, release_chunk, unfinished_requests
from tasks.errors import LeaseLost
from tasks.jobs import cancel_job, get_job
from tasks.sweep import take_back_expired_leases
from tasks.tables import ChunkState, JobStatus, Lane, Result
from tests.samples import (
    ENDPOINT,
    answer,
    change_chunks,
    change_job,
    chunks_of,
    leased,
    outcomes_of,
    put_on_runway,
    results_of,
    started_job,
)

LONG_AGO_MS = 1


def record(backends: Backends, lease: Lease, indices: list[int], *, finish: bool = False) -> bool:
    """Write good answers for these requests; whether the job then has all its results."""
    outcomes = outcomes_of(backends, lease, indices)
    recorded = record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=finish)
    return recorded.all_results_in


def takeover(backends: Backends, job_id: str) -> Lease:
    """The worker falls silent, the sweeper takes its chunk back, another worker leases it."""
    change_chunks(backends, job_id, lease_expires_ms=LONG_AGO_MS)
    assert take_back_expired_leases(backends.database) == 1
    return leased(backends, job_id, owner="worker-2")


@pytest.mark.parametrize("state", [ChunkState.PENDING, ChunkState.LEASED, ChunkState.DONE])
def test_only_a_chunk_on_the_runway_can_be_leased(backends: Backends, state: ChunkState) -> None:
    job_id = started_job(backends, 1)
    change_chunks(backends, job_id, state=state)
    assert lease_chunk(backends.database, job_id, 0, "w", 30) is None
    assert chunks_of(backends, job_id)[0].state == state


def test_a_lease_says_all_that_a_worker_needs(backends: Backends) -> None:
    job_id = started_job(backends, 3, per_chunk=2, lane=Lane.BULK)
    lease = leased(backends, job_id, 1)
    assert (lease.job_id, lease.seq, lease.attempt, lease.endpoint, lease.lane) == (
        job_id,
        1,
        1,
        ENDPOINT,
        Lane.BULK,
    )
    assert [request.custom_id for request in unfinished_requests(backends, lease)] == ["r2"]
    chunk = chunks_of(backends, job_id)[1]
    assert (chunk.state, chunk.lease_owner) == (ChunkState.LEASED, "worker-1")


def test_a_second_delivery_of_the_same_message_gets_nothing(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    lease = leased(backends, job_id)
    assert lease_chunk(backends.database, job_id, 0, "other", 30) is None
    record(backends, lease, [0], finish=True)
    assert lease_chunk(backends.database, job_id, 0, "other", 30) is None


def test_of_many_workers_at_once_one_gets_the_chunk(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    put_on_runway(backends, job_id)
    with ThreadPoolExecutor(8) as pool:
        leases = list(
            pool.map(lambda number: lease_chunk(backends.database, job_id, 0, f"w{number}", 30), range(8))
        )
    assert len([lease for lease in leases if lease is not None]) == 1


@pytest.mark.parametrize("status", sorted(set(JobStatus) - {JobStatus.IN_PROGRESS}))
def test_no_chunk_of_a_job_that_does_not_run_is_leased(backends: Backends, status: JobStatus) -> None:
    job_id = started_job(backends, 1)
    put_on_runway(backends, job_id)
    change_job(backends, job_id, status=status)
    assert lease_chunk(backends.database, job_id, 0, "w", 30) is None


def test_a_chunk_that_is_not_there_is_not_leased(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    assert lease_chunk(backends.database, job_id, 7, "w", 30) is None
    assert lease_chunk(backends.database, "batch_none", 0, "w", 30) is None


def test_results_and_counters_move_together(backends: Backends) -> None:
    job_id = started_job(backends, 4)
    lease = leased(backends, job_id)
    tokens: dict[str, Any] = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cached_tokens": 4,
        "reasoning_tokens": 3,
    }
    outcomes = [
        answer(0, **tokens),
        answer(1, status_code=400, body=b'{"error":{}}', input_tokens=1),
        answer(2, status_code=None, error_code="engine_crash"),
    ]
    recorded = record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=False)
    assert (recorded.job_status, recorded.all_results_in) == (JobStatus.IN_PROGRESS, False)
    job = get_job(backends.database, job_id)
    assert (job.completed, job.failed) == (1, 2)
    assert (job.input_tokens, job.output_tokens, job.cached_tokens, job.reasoning_tokens) == (11, 5, 4, 3)
    stored = results_of(backends, job_id)
    assert [(row.index, row.status_code, row.error_code) for row in stored] == [
        (0, 200, None),
        (1, 400, None),
        (2, None, "engine_crash"),
    ]
    assert stored[0].body == b'{"of":0}'
    assert record(backends, lease, [3], finish=True), "the last result is in"
    chunk = chunks_of(backends, job_id)[0]
    assert (chunk.state, chunk.lease_owner, chunk.lease_expires_ms) == (ChunkState.DONE, None, None)


def test_a_write_without_results_renews_the_lease(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    lease = leased(backends, job_id)
    change_chunks(backends, job_id, lease_expires_ms=LONG_AGO_MS)
    assert not record(backends, lease, [])
    assert (chunks_of(backends, job_id)[0].lease_expires_ms or 0) > LONG_AGO_MS
    assert take_back_expired_leases(backends.database) == 0


def test_nothing_is_written_under_a_lease_that_was_taken_over(backends: Backends) -> None:
    job_id = started_job(backends, 2)
    old = leased(backends, job_id)
    new = takeover(backends, job_id)
    assert (new.attempt, new.token) == (2, old.token + 1)
    for finish in (False, True):
        with pytest.raises(LeaseLost):
            record(backends, old, [0, 1], finish=finish)
    job = get_job(backends.database, job_id)
    assert (job.completed, results_of(backends, job_id)) == (0, [])
    release_chunk(backends.database, old, attempts=old.attempt)
    assert chunks_of(backends, job_id)[0].lease_owner == "worker-2", "the new lease is untouched"
    assert record(backends, new, [0, 1], finish=True)


def test_a_lease_is_lost_while_the_chunk_waits_to_be_run_again(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    lease = leased(backends, job_id)
    change_chunks(backends, job_id, lease_expires_ms=LONG_AGO_MS)
    take_back_expired_leases(backends.database)
    with pytest.raises(LeaseLost):
        record(backends, lease, [0])


@pytest.mark.parametrize(
    "status", [JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.EXPIRED, JobStatus.FAILED]
)
def test_nothing_is_written_for_a_job_that_has_ended(backends: Backends, status: JobStatus) -> None:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    change_job(backends, job_id, status=status)
    with pytest.raises(LeaseLost):
        record(backends, lease, [0])
    assert results_of(backends, job_id) == []
    assert get_job(backends.database, job_id).completed == 0


def test_a_result_that_is_already_there_is_kept_and_counted_once(backends: Backends) -> None:
    job_id = started_job(backends, 3)
    lease = leased(backends, job_id)
    record(backends, lease, [0])
    again = [answer(0, body=b'"another answer"', output_tokens=99), answer(1, output_tokens=1)]
    record_results(backends.database, lease, again, worker="w", lease_s=30, finish=False)
    job = get_job(backends.database, job_id)
    assert (job.completed, job.failed, job.output_tokens) == (2, 0, 1)
    assert [row.body for row in results_of(backends, job_id)] == [b'{"of":0}', b'{"of":1}']


def test_a_whole_batch_that_is_already_there_counts_nothing(backends: Backends) -> None:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    assert record(backends, lease, [0, 1])
    assert record(backends, lease, [0, 1], finish=True)
    assert get_job(backends.database, job_id).completed == 2
    assert chunks_of(backends, job_id)[0].state == ChunkState.DONE


@pytest.mark.parametrize(("counts", "next_attempt"), [(True, 2), (False, 1)])
def test_a_chunk_given_back_is_run_again(backends: Backends, counts: bool, next_attempt: int) -> None:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    release_chunk(backends.database, lease, attempts=lease.attempt - (not counts))
    chunk = chunks_of(backends, job_id)[0]
    assert (chunk.state, chunk.lease_owner, chunk.lease_expires_ms) == (ChunkState.PENDING, None, None)
    again = leased(backends, job_id)
    assert (again.attempt, again.token) == (next_attempt, lease.token + 1)


@pytest.mark.parametrize("counts", [True, False])
def test_finished_requests_of_a_chunk_given_back_are_not_run_again(backends: Backends, counts: bool) -> None:
    job_id = started_job(backends, 3)
    lease = leased(backends, job_id)
    record(backends, lease, [1])
    release_chunk(backends.database, lease, attempts=lease.attempt - (not counts))
    again = leased(backends, job_id)
    assert [request.index for request in unfinished_requests(backends, again)] == [0, 2]


def test_finished_requests_of_a_chunk_taken_over_are_not_run_again(backends: Backends) -> None:
    job_id = started_job(backends, 3)
    record(backends, leased(backends, job_id), [0, 2])
    assert [request.index for request in unfinished_requests(backends, takeover(backends, job_id))] == [1]


def test_only_leases_that_have_run_out_are_taken_back(backends: Backends) -> None:
    job_id = started_job(backends, 2, per_chunk=1)
    leased(backends, job_id, 0)
    leased(backends, job_id, 1)
    assert take_back_expired_leases(backends.database) == 0
    change_chunks(backends, job_id, lease_expires_ms=LONG_AGO_MS)
    assert take_back_expired_leases(backends.database) == 2
    assert {chunk.attempt for chunk in chunks_of(backends, job_id)} == {1}, "the attempt counts"


def test_a_lease_lasts_as_long_as_it_says_by_the_clock_of_the_database(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    put_on_runway(backends, job_id)
    job = get_job(backends.database, job_id)
    assert lease_chunk(backends.database, job_id, 0, "w", 1000) is not None
    lasts_ms = (chunks_of(backends, job_id)[0].lease_expires_ms or 0) - job.created_ms
    assert 1_000_000 <= lasts_ms < 1_060_000


def test_many_workers_writing_at_once_lose_no_count(backends: Backends) -> None:
    job_id = started_job(backends, 24, per_chunk=3)
    leases = [leased(backends, job_id, seq) for seq in range(8)]

    def run(lease: Lease) -> None:
        for index in range(lease.seq * 3, lease.seq * 3 + 3):
            record(backends, lease, [index])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, leases))
    with backends.database.read() as session:
        rows = session.execute(select(func.count()).where(Result.job_id == job_id)).scalar_one()
    assert (rows, get_job(backends.database, job_id).completed) == (24, 24)


def test_a_chunk_given_back_after_its_job_was_cancelled_does_not_run(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    lease = leased(backends, job_id)
    cancel_job(backends.database, job_id)
    release_chunk(backends.database, lease, attempts=lease.attempt - 1)
    put_on_runway(backends, job_id)
    assert lease_chunk(backends.database, job_id, 0, "w", 30) is None
