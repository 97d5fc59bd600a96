"""The states of a job: which moves there are, and that each is made once."""

from itertools import product

import pytest
from sqlalchemy import func, select

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.errors import Conflict, NotFound
from tasks.finalise import settle
from tasks.jobs import cancel_job, get_job, move_job
from tasks.tables import Audit, ChunkState, JobStatus
from tests.samples import change_job, chunks_of, good_input, leased, outcomes_of, started_job, submit

VALIDATING, IN_PROGRESS, FINALIZING = JobStatus.VALIDATING, JobStatus.IN_PROGRESS, JobStatus.FINALIZING
CANCELLING, CANCELLED = JobStatus.CANCELLING, JobStatus.CANCELLED
COMPLETED, FAILED, EXPIRED = JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.EXPIRED

LEGAL = {
    (VALIDATING, IN_PROGRESS),
    (VALIDATING, FAILED),
    (VALIDATING, EXPIRED),
    (VALIDATING, CANCELLING),
    (IN_PROGRESS, FINALIZING),
    (IN_PROGRESS, CANCELLING),
    (IN_PROGRESS, FAILED),
    (FINALIZING, COMPLETED),
    (FINALIZING, EXPIRED),
    (FINALIZING, FAILED),
    (CANCELLING, CANCELLED),
    (CANCELLING, FAILED),
}
ALL_PAIRS = set(product(JobStatus, JobStatus))


@pytest.fixture
def job_id(backends: Backends) -> str:
    return submit(backends, good_input(1))


def moved(backends: Backends, job_id: str, frm: set[JobStatus], to: JobStatus) -> bool:
    with backends.database.write() as session:
        return move_job(session, job_id, frm, to)


def audited(backends: Backends, job_id: str, action: str) -> int:
    with backends.database.read() as session:
        query = select(func.count()).where(Audit.subject == job_id, Audit.action == action)
        return session.execute(query).scalar_one()


def test_every_move_outside_the_table_is_refused(backends: Backends, job_id: str) -> None:
    for frm, to in sorted(ALL_PAIRS - LEGAL):
        change_job(backends, job_id, status=frm)
        with pytest.raises(ValueError, match=f"no move from {frm} to {to}"):
            moved(backends, job_id, {frm}, to)
        assert get_job(backends.database, job_id).status == frm


def test_a_set_with_one_illegal_move_is_refused_as_a_whole(backends: Backends, job_id: str) -> None:
    with pytest.raises(ValueError, match="no move from finalizing to cancelling"):
        moved(backends, job_id, {VALIDATING, FINALIZING}, CANCELLING)
    assert get_job(backends.database, job_id).status == VALIDATING


def test_every_legal_move_is_made_dated_and_audited(backends: Backends) -> None:
    for frm, to in sorted(LEGAL):
        job_id = submit(backends, good_input(1))
        change_job(backends, job_id, status=frm)
        assert moved(backends, job_id, {frm}, to)
        job = get_job(backends.database, job_id)
        assert job.status == to
        assert getattr(job, f"{to}_ms") >= job.created_ms
        assert audited(backends, job_id, f"job.{to}") == 1


def test_a_move_from_a_status_that_has_changed_is_not_made(backends: Backends, job_id: str) -> None:
    for frm, to in sorted(LEGAL):
        for present in set(JobStatus) - {frm}:
            change_job(backends, job_id, status=present)
            assert not moved(backends, job_id, {frm}, to)
            assert get_job(backends.database, job_id).status == present
    with backends.database.read() as session:
        moves = select(func.count()).where(Audit.subject == job_id, Audit.action != "job.created")
        assert session.execute(moves).scalar_one() == 0


def test_a_move_of_a_job_that_is_not_there_is_not_made(backends: Backends) -> None:
    assert not moved(backends, "batch_none", {VALIDATING}, FAILED)


def test_a_move_that_is_rolled_back_leaves_no_trace(backends: Backends, job_id: str) -> None:
    def fail_after_move() -> None:
        with backends.database.write() as session:
            assert move_job(session, job_id, {VALIDATING}, CANCELLING)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail_after_move()
    assert get_job(backends.database, job_id).status == VALIDATING
    assert audited(backends, job_id, "job.cancelling") == 0


def test_a_job_in_validation_is_cancelled(backends: Backends, job_id: str) -> None:
    assert cancel_job(backends.database, job_id).status == CANCELLING
    assert settle(backends, job_id) == CANCELLED


def test_cancelling_keeps_waiting_chunks_from_running_and_leaves_leased_ones(backends: Backends) -> None:
    job_id = started_job(backends, 3, per_chunk=1)
    leased(backends, job_id, 0)
    assert cancel_job(backends.database, job_id).status == CANCELLING
    states = [chunk.state for chunk in chunks_of(backends, job_id)]
    assert states == [ChunkState.LEASED, ChunkState.DONE, ChunkState.DONE]


def test_cancelling_twice_is_fine(backends: Backends) -> None:
    job_id = started_job(backends, 1)
    assert cancel_job(backends.database, job_id).status == CANCELLING
    assert cancel_job(backends.database, job_id).status == CANCELLING
    assert settle(backends, job_id) == CANCELLED
    assert audited(backends, job_id, "job.cancelling") == 1


@pytest.mark.parametrize("status", [FINALIZING, COMPLETED, FAILED, EXPIRED, CANCELLED])
def test_a_job_that_ends_or_has_ended_cannot_be_cancelled(
    backends: Backends, job_id: str, status: JobStatus
) -> None:
    change_job(backends, job_id, status=status)
    with pytest.raises(Conflict) as caught:
        cancel_job(backends.database, job_id)
    assert caught.value.code == "batch_not_cancellable"
    assert get_job(backends.database, job_id).status == status


def test_a_job_that_is_not_there_cannot_be_cancelled(backends: Backends) -> None:
    with pytest.raises(NotFound):
        cancel_job(backends.database, "batch_none")


def test_results_that_finish_while_a_job_is_cancelled_are_kept(backends: Backends) -> None:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    cancel_job(backends.database, job_id)
    recorded = record_results(
        backends.database, lease, outcomes_of(backends, lease, [0]), worker="w", lease_s=30, finish=False
    )
    assert recorded.job_status is CANCELLING
    assert get_job(backends.database, job_id).completed == 1
