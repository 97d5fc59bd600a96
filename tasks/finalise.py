"""How jobs end: what has no result gets one, the job reaches a final state, leftovers go."""

from datetime import UTC, datetime

import structlog
from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from tasks.backends import Backends
from tasks.chunks import add_results, finished_indices
from tasks.clock import now_ms
from tasks.counting import add_counts
from tasks.database import Database
from tasks.errors import LeaseLost
from tasks.failpoints import Failpoint, failpoint
from tasks.jobs import fail_for_lost_plan, get_job, move_job
from tasks.outcomes import Outcome
from tasks.planned_file import read_frame
from tasks.storage import Storage, StoredObjectMissing
from tasks.tables import Chunk, ChunkState, Job, JobStatus, Usage

log = structlog.get_logger()


def settle(backends: Backends, job_id: str) -> JobStatus:
    """Take a job as far towards its end as it can go now; safe to repeat and to run twice at once.

    Raises:
        NotFound: there is no such job.
    """
    job = get_job(backends.database, job_id)
    try:
        _settle(backends, job)
    except LeaseLost:
        # Somebody else brought it to its end while this call was at work.
        log.info("settled_elsewhere", job=job_id)
    except StoredObjectMissing:
        job = get_job(backends.database, job_id)
        if job.planned_key is not None:
            log.error("plan_missing", job=job_id)
            fail_for_lost_plan(backends.database, job_id)
    return JobStatus(get_job(backends.database, job_id).status)


def _settle(backends: Backends, job: Job) -> None:
    status = JobStatus(job.status)
    if status is JobStatus.IN_PROGRESS and job.completed + job.failed >= job.total:
        with backends.database.write() as session:
            move_job(session, job.id, {JobStatus.IN_PROGRESS}, JobStatus.FINALIZING)
        status = JobStatus.FINALIZING
    if status is JobStatus.FINALIZING:
        failpoint(Failpoint.FINALIZING)
        _fill(backends, job, "batch_expired")
        ending = JobStatus.COMPLETED if job.expired_ms is None else JobStatus.EXPIRED
        _end(backends, job, JobStatus.FINALIZING, ending)
    elif status is JobStatus.CANCELLING and not _has_live_lease(backends.database, job.id):
        _fill(backends, job, "batch_cancelled")
        _end(backends, job, JobStatus.CANCELLING, JobStatus.CANCELLED)


def expire_overdue(database: Database) -> None:
    """Stop jobs whose deadline has passed; what they finished is kept."""
    with database.write() as session:
        overdue = session.execute(
            select(Job.id, Job.status).where(
                Job.status.in_([JobStatus.VALIDATING, JobStatus.IN_PROGRESS]), Job.deadline_ms < now_ms()
            )
        ).all()
        for job_id, status in overdue:
            if status == JobStatus.VALIDATING:
                move_job(session, job_id, {JobStatus.VALIDATING}, JobStatus.EXPIRED)
            else:
                # Its presence tells the steps that follow that the job ran out of time.
                move_job(session, job_id, {JobStatus.IN_PROGRESS}, JobStatus.FINALIZING, expired_ms=now_ms())


def _fill(backends: Backends, job: Job, error_code: str) -> None:
    """Give every request without a result one that says why, chunk by chunk."""
    for seq in _unfilled_chunks(backends.database, job.id):
        _fill_chunk(backends.database, backends.storage, job, seq, error_code)
        failpoint(Failpoint.FILLING)


def _unfilled_chunks(database: Database, job_id: str) -> list[int]:
    """Chunks that may have requests without a result: in an ending job, all that is not full."""
    with database.read() as session:
        job = session.execute(select(Job.total, Job.completed + Job.failed).where(Job.id == job_id)).one()
        if job[0] == job[1]:
            return []
        return list(session.scalars(select(Chunk.seq).where(Chunk.job_id == job_id).order_by(Chunk.seq)))


def _fill_chunk(database: Database, storage: Storage, job: Job, seq: int, error_code: str) -> None:
    assert job.planned_key is not None
    with database.write() as session:
        chunk = session.execute(
            update(Chunk)
            .where(Chunk.job_id == job.id, Chunk.seq == seq)
            # The higher token shuts out a worker that still has the chunk.
            .values(
                state=ChunkState.DONE,
                lease_token=Chunk.lease_token + 1,
                lease_owner=None,
                lease_expires_ms=None,
            )
            .returning(Chunk.offset, Chunk.length)
        ).one()
    requests = read_frame(storage, job.planned_key, chunk.offset, chunk.length)
    with database.write() as session:
        # Two that fill at once must not both find the same requests missing.
        session.execute(select(Job.id).where(Job.id == job.id).with_for_update())
        done = finished_indices(session, job.id, [request.index for request in requests])
        missing = [
            Outcome(request.index, request.custom_id, None, None, error_code)
            for request in requests
            if request.index not in done
        ]
        add_results(session, job.id, seq, missing, worker="")


def _has_live_lease(database: Database, job_id: str) -> bool:
    with database.read() as session:
        return (
            session.execute(
                select(Chunk.seq)
                .where(
                    Chunk.job_id == job_id,
                    Chunk.state == ChunkState.LEASED,
                    or_(Chunk.lease_expires_ms.is_(None), Chunk.lease_expires_ms >= now_ms()),
                )
                .limit(1)
            ).first()
            is not None
        )


def _end(backends: Backends, job: Job, frm: JobStatus, to: JobStatus) -> None:
    with backends.database.write() as session:
        if not move_job(session, job.id, {frm}, to):
            return
        _count_usage(session, job.id)
    log.info("job_ended", job=job.id, status=to)


def _count_usage(session: Session, job_id: str) -> None:
    job = session.get_one(Job, job_id, populate_existing=True)
    if job.model is None:
        return
    now_s = session.execute(select(now_ms())).scalar_one() / 1000
    key = {
        "day": datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d"),
        "tenant": job.tenant,
        "model": job.model,
    }
    figures = {
        "requests": job.completed + job.failed,
        "failed_requests": job.failed,
        "input_tokens": job.input_tokens,
        "output_tokens": job.output_tokens,
    }
    add_counts(session, Usage, [{**key, **figures}], tuple(figures))
