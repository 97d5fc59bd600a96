"""How jobs end: each request has one result, the counts add up, leftovers are gone."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from tasks import finalise
from tasks.backends import Backends
from tasks.chunks import record_results, release_chunk
from tasks.errors import LeaseLost
from tasks.finalise import expire_overdue, settle
from tasks.jobs import cancel_job, get_job
from tasks.planned_file import PlannedRequest, read_frame
from tasks.results import iter_results
from tasks.tables import Chunk, ChunkState, JobStatus, ResultSet, Usage
from tests.samples import (
    answer,
    change_chunks,
    change_job,
    chunks_of,
    good_input,
    leased,
    outcomes_of,
    results_of,
    started_job,
    submit,
)

LONG_AGO_MS = 1


def finish_chunk(backends: Backends, job_id: str, seq: int = 0, *, only: list[int] | None = None) -> None:
    """Lease a chunk and record it; `only` some of its requests leaves it leased."""
    lease = leased(backends, job_id, seq)
    outcomes = outcomes_of(backends, lease, only)
    record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=only is None)


def assert_ended(backends: Backends, job_id: str, status: JobStatus) -> None:
    """What is true of every job that ran and has ended."""
    job = get_job(backends.database, job_id)
    assert job.status == status
    output = list(iter_results(backends.database, job_id, ResultSet.OUTPUT))
    errors = list(iter_results(backends.database, job_id, ResultSet.ERRORS))
    assert (len(output), len(errors)) == (job.completed, job.failed)
    assert len(output) + len(errors) == job.total
    assert [row.custom_id for row in results_of(backends, job_id)] == [f"r{n}" for n in range(job.total)]
    assert getattr(job, f"{status}_ms") is not None


def usage_of(backends: Backends) -> list[Usage]:
    with backends.database.read() as session:
        return list(session.scalars(select(Usage)))


def missing_codes(backends: Backends, job_id: str) -> dict[int, str | None]:
    return {row.index: row.error_code for row in results_of(backends, job_id) if row.status_code is None}


def test_a_job_with_results_missing_stays_in_progress(backends: Backends) -> None:
    job_id = started_job(backends, 2, per_chunk=1)
    finish_chunk(backends, job_id, 0)
    assert settle(backends, job_id) == JobStatus.IN_PROGRESS


def test_a_job_with_all_results_is_completed(backends: Backends) -> None:
    job_id = started_job(backends, 3, per_chunk=2)
    for seq in (0, 1):
        finish_chunk(backends, job_id, seq)
    assert settle(backends, job_id) == JobStatus.COMPLETED
    assert_ended(backends, job_id, JobStatus.COMPLETED)


def test_a_job_whose_requests_all_failed_is_completed_too(backends: Backends) -> None:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    refused = [answer(index, status_code=400, body=b"{}") for index in range(2)]
    record_results(backends.database, lease, refused, worker="w", lease_s=30, finish=True)
    settle(backends, job_id)
    assert_ended(backends, job_id, JobStatus.COMPLETED)
    assert get_job(backends.database, job_id).failed == 2


def test_what_a_cancelled_job_did_not_run_says_so(backends: Backends) -> None:
    job_id = started_job(backends, 5, per_chunk=2)
    finish_chunk(backends, job_id, 0)
    finish_chunk(backends, job_id, 1, only=[3])
    cancel_job(backends.database, job_id)
    assert settle(backends, job_id) == JobStatus.CANCELLING, "a worker still has a chunk"
    change_chunks(backends, job_id, lease_expires_ms=LONG_AGO_MS)
    assert settle(backends, job_id) == JobStatus.CANCELLED
    assert_ended(backends, job_id, JobStatus.CANCELLED)
    assert missing_codes(backends, job_id) == {2: "batch_cancelled", 4: "batch_cancelled"}


def test_a_cancelled_job_ends_once_its_chunks_are_given_back(backends: Backends) -> None:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    cancel_job(backends.database, job_id)
    assert settle(backends, job_id) == JobStatus.CANCELLING
    release_chunk(backends.database, lease, attempts=lease.attempt - 1)
    assert settle(backends, job_id) == JobStatus.CANCELLED
    assert_ended(backends, job_id, JobStatus.CANCELLED)


def test_a_job_cancelled_before_it_was_planned_has_nothing_to_fill(backends: Backends) -> None:
    job_id = submit(backends, good_input(2))
    cancel_job(backends.database, job_id)
    assert settle(backends, job_id) == JobStatus.CANCELLED
    assert (results_of(backends, job_id), usage_of(backends)) == ([], [])


def test_a_job_past_its_deadline_keeps_what_it_has(backends: Backends) -> None:
    job_id = started_job(backends, 4, per_chunk=2)
    finish_chunk(backends, job_id, 0)
    change_job(backends, job_id, deadline_ms=LONG_AGO_MS)
    expire_overdue(backends.database)
    assert get_job(backends.database, job_id).status == JobStatus.FINALIZING
    assert settle(backends, job_id) == JobStatus.EXPIRED
    assert_ended(backends, job_id, JobStatus.EXPIRED)
    assert missing_codes(backends, job_id) == {2: "batch_expired", 3: "batch_expired"}


def test_a_worker_that_has_a_chunk_of_an_expired_job_is_shut_out(backends: Backends) -> None:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    outcomes = outcomes_of(backends, lease)
    change_job(backends, job_id, deadline_ms=LONG_AGO_MS)
    expire_overdue(backends.database)
    # Up to the fill its results are welcome.
    record_results(backends.database, lease, outcomes[:1], worker="w", lease_s=30, finish=False)
    settle(backends, job_id)
    with pytest.raises(LeaseLost):
        record_results(backends.database, lease, outcomes[1:], worker="w", lease_s=30, finish=True)
    assert_ended(backends, job_id, JobStatus.EXPIRED)
    assert missing_codes(backends, job_id) == {1: "batch_expired"}


def test_a_job_that_expires_in_validation_ends_at_once(backends: Backends) -> None:
    job_id = submit(backends, good_input(1))
    change_job(backends, job_id, deadline_ms=LONG_AGO_MS)
    expire_overdue(backends.database)
    job = get_job(backends.database, job_id)
    assert job.status == JobStatus.EXPIRED
    assert job.expired_ms is not None
    assert settle(backends, job_id) == JobStatus.EXPIRED


@pytest.mark.parametrize("status", sorted(set(JobStatus) - {JobStatus.VALIDATING, JobStatus.IN_PROGRESS}))
def test_a_deadline_means_nothing_to_a_job_that_ends_or_has_ended(
    backends: Backends, status: JobStatus
) -> None:
    job_id = submit(backends, good_input(1))
    change_job(backends, job_id, status=status, deadline_ms=LONG_AGO_MS)
    expire_overdue(backends.database)
    assert get_job(backends.database, job_id).status == status


def test_jobs_within_their_deadline_are_left_alone(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    expire_overdue(backends.database)
    assert get_job(backends.database, job_id).status == JobStatus.IN_PROGRESS


@pytest.mark.parametrize("ending", ["completed", "cancelled", "expired"])
def test_settling_again_changes_nothing(backends: Backends, ending: str) -> None:
    job_id = started_job(backends, 3, per_chunk=2)
    finish_chunk(backends, job_id, 0)
    if ending == "completed":
        finish_chunk(backends, job_id, 1)
    elif ending == "cancelled":
        cancel_job(backends.database, job_id)
    else:
        change_job(backends, job_id, deadline_ms=LONG_AGO_MS)
        expire_overdue(backends.database)
    status = settle(backends, job_id)
    assert status == ending
    before = get_job(backends.database, job_id)
    assert settle(backends, job_id) == status
    after = get_job(backends.database, job_id)
    assert getattr(after, f"{ending}_ms") == getattr(before, f"{ending}_ms")
    assert_ended(backends, job_id, status)
    (usage,) = usage_of(backends)
    assert (usage.requests, usage.failed_requests) == (after.completed + after.failed, after.failed)


@pytest.mark.parametrize("ending", ["completed", "cancelled"])
def test_two_that_settle_at_once_do_it_once(backends: Backends, ending: str) -> None:
    job_id = started_job(backends, 6, per_chunk=2)
    for seq in range(3 if ending == "completed" else 1):
        finish_chunk(backends, job_id, seq)
    if ending == "cancelled":
        cancel_job(backends.database, job_id)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: settle(backends, job_id), range(4)))
    assert_ended(backends, job_id, JobStatus(ending))
    (usage,) = usage_of(backends)
    assert usage.requests == 6


@pytest.mark.parametrize("overtaken", ["before the plan is read", "after the plan is read"])
def test_one_that_is_overtaken_while_it_fills_lets_the_other_win(
    backends: Backends, monkeypatch: pytest.MonkeyPatch, overtaken: str
) -> None:
    job_id = started_job(backends, 2)
    cancel_job(backends.database, job_id)

    def read_while_another_settles(*place: Any) -> list[PlannedRequest]:
        monkeypatch.setattr(finalise, "read_frame", read_frame)
        requests = read_frame(*place)
        assert settle(backends, job_id) == JobStatus.CANCELLED
        return requests if overtaken.startswith("after") else read_frame(*place)

    monkeypatch.setattr(finalise, "read_frame", read_while_another_settles)
    assert settle(backends, job_id) == JobStatus.CANCELLED
    assert_ended(backends, job_id, JobStatus.CANCELLED)


def test_usage_adds_up_over_the_jobs_of_a_day(backends: Backends) -> None:
    for model in ("sim", "sim", "other"):
        job_id = started_job(backends, 2, model=model)
        lease = leased(backends, job_id)
        outcomes = [answer(0, input_tokens=3, output_tokens=2), answer(1, status_code=400, body=b"{}")]
        record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)
        settle(backends, job_id)
    rows = {row.model: row for row in usage_of(backends)}
    assert (rows["sim"].requests, rows["sim"].failed_requests) == (4, 2)
    assert (rows["sim"].input_tokens, rows["sim"].output_tokens) == (6, 4)
    assert rows["other"].requests == 2


def test_a_fill_that_was_cut_off_is_taken_up_again(backends: Backends) -> None:
    job_id = started_job(backends, 4, per_chunk=2)
    change_job(backends, job_id, deadline_ms=LONG_AGO_MS)
    expire_overdue(backends.database)
    with backends.database.write() as session:
        # As it is left by a process that died between the two transactions of a chunk.
        first = session.get_one(Chunk, (job_id, 0))
        first.state, first.lease_token = ChunkState.DONE, first.lease_token + 1
    assert settle(backends, job_id) == JobStatus.EXPIRED
    assert_ended(backends, job_id, JobStatus.EXPIRED)
    assert {chunk.state for chunk in chunks_of(backends, job_id)} == {ChunkState.DONE}
