"""The life of a job: its states, and each move between them as one guarded write."""

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tasks.audit import audit
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import Conflict, LineFault, NotFound
from tasks.failpoints import Failpoint, failpoint
from tasks.ids import result_file_id
from tasks.tables import (
    FINAL_STATUSES,
    Chunk,
    ChunkState,
    File,
    Job,
    JobKind,
    JobStatus,
    Lane,
    ResultSet,
)

LEGAL_MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.VALIDATING: frozenset(
        {JobStatus.IN_PROGRESS, JobStatus.FAILED, JobStatus.EXPIRED, JobStatus.CANCELLING}
    ),
    JobStatus.IN_PROGRESS: frozenset({JobStatus.FINALIZING, JobStatus.CANCELLING, JobStatus.FAILED}),
    JobStatus.FINALIZING: frozenset({JobStatus.COMPLETED, JobStatus.EXPIRED, JobStatus.FAILED}),
    JobStatus.CANCELLING: frozenset({JobStatus.CANCELLED, JobStatus.FAILED}),
    **{status: frozenset() for status in FINAL_STATUSES},
}

RUNNABLE = frozenset({JobStatus.IN_PROGRESS})
"""A worker may start requests of such a job."""

WRITABLE = frozenset({JobStatus.IN_PROGRESS, JobStatus.CANCELLING})
"""Results that finish are still recorded."""


def move_job(session: Session, job_id: str, frm: Iterable[JobStatus], to: JobStatus, **values: Any) -> bool:
    """Change a job's status, if it is one of `frm`; the only code that does.

    Returns whether this call made the move; another status in the meantime is not an error.

    Raises:
        ValueError: the table of legal moves has no such move.
    """
    froms = frozenset(frm)
    if illegal := [status for status in froms if to not in LEGAL_MOVES[status]]:
        raise ValueError(f"no move from {', '.join(illegal)} to {to}")
    moved = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.status.in_(froms))
        .values({"status": to, f"{to}_ms": now_ms(), **values})
        .returning(Job.tenant)
    ).scalar_one_or_none()
    if moved is None:
        return False
    audit(session, moved, f"job.{to}", job_id)
    if to in FINAL_STATUSES:
        _show_result_files(session, job_id)
    return True


def _show_result_files(session: Session, job_id: str) -> None:
    """From its end on a job's results are files of their own, which are listed, expire and can be deleted."""
    job = session.get_one(Job, job_id, populate_existing=True)
    if job.kind == JobKind.SINGLE:
        return
    created = session.execute(select(now_ms())).scalar_one()
    for which, results, size in (
        (ResultSet.OUTPUT, job.completed, job.output_bytes),
        (ResultSet.ERRORS, job.failed, job.error_bytes),
    ):
        if results:
            session.add(result_file(job, which, size, created))


def result_file(job: Job, which: ResultSet, size: int, created_ms: int) -> File:
    """The results of a job as a file; its content is in the database."""
    kept_ms = None if job.output_expires_s is None else job.output_expires_s * 1000
    return File(
        id=result_file_id(job.id, which),
        tenant=job.tenant,
        purpose="batch_output",
        filename=f"{job.id}_{which}.jsonl",
        bytes=size,
        sha256="",
        storage_key=None,
        job_id=job.id,
        created_ms=created_ms,
        expires_ms=None if kept_ms is None else created_ms + kept_ms,
        deleted_ms=None,
    )


def fail_for_lost_plan(database: Database, job_id: str) -> None:
    """End a job whose planned file is gone from storage: what it has not run can no longer be known."""
    message = "The job's requests are no longer in storage. The results that were finished are kept."
    fault = LineFault("plan_missing", message)
    running = {JobStatus.IN_PROGRESS, JobStatus.FINALIZING, JobStatus.CANCELLING}
    with database.write() as session:
        move_job(
            session,
            job_id,
            running,
            JobStatus.FAILED,
            errors=[msgspec.to_builtins(fault)],
            planned_key=None,
        )


def get_job(database: Database, job_id: str, tenant: str | None = None) -> Job:
    """The job as it is now; with a tenant, only if it is theirs and not deleted.

    Raises:
        NotFound: there is none.
    """
    with database.read() as session:
        job = session.get(Job, job_id)
    if job is None or (tenant is not None and (job.tenant != tenant or job.deleted_ms is not None)):
        raise NotFound("job", job_id)
    return job


def cancel_job(database: Database, job_id: str, tenant: str | None = None) -> Job:
    """Stop a job: nothing more of it is started, finished results are kept.

    Cancelling twice is fine, as long as it has not ended.

    Raises:
        NotFound: there is no such job.
        Conflict: it is finalising or has ended.
    """
    get_job(database, job_id, tenant)
    with database.write() as session:
        stopped = move_job(
            session, job_id, {JobStatus.VALIDATING, JobStatus.IN_PROGRESS}, JobStatus.CANCELLING
        )
        if stopped:
            session.execute(
                update(Chunk)
                .where(Chunk.job_id == job_id, Chunk.state.in_([ChunkState.PENDING, ChunkState.QUEUED]))
                .values(state=ChunkState.DONE)
            )
    failpoint(Failpoint.CANCEL_COMMITTED)
    job = get_job(database, job_id)
    if not stopped and job.status != JobStatus.CANCELLING:
        raise Conflict(
            f"The job is {job.status} and can no longer be cancelled.", code="batch_not_cancellable"
        )
    return job


def set_lane(database: Database, job_id: str, lane: Lane, tenant: str | None = None) -> Job:
    """Change a job's priority, for everything of it that no worker has yet.

    Raises:
        NotFound: there is no such job.
        Conflict: it has ended.
    """
    get_job(database, job_id, tenant)
    with database.write() as session:
        owner = session.execute(
            update(Job)
            .where(Job.id == job_id, Job.status.not_in(FINAL_STATUSES))
            .values(lane=lane)
            .returning(Job.tenant)
        ).scalar_one_or_none()
        if owner is not None:
            audit(session, owner, "job.lane", job_id, lane=lane)
            # Off the runway, so that they are published again on the other lane; whoever takes one of the
            # messages that are there already finds that it is not queued, and drops it.
            session.execute(
                update(Chunk)
                .where(Chunk.job_id == job_id, Chunk.state == ChunkState.QUEUED)
                .values(state=ChunkState.PENDING, queued_ms=None)
            )
    job = get_job(database, job_id)
    if owner is None:
        raise Conflict(f"The job is {job.status}: its priority no longer matters.", code="job_has_ended")
    return job


def delete_job(database: Database, job_id: str, tenant: str | None = None) -> None:
    """Hide a job that has ended; the sweeper removes its results and files.

    Raises:
        NotFound: there is no such job.
        Conflict: it has not ended.
    """
    job = get_job(database, job_id, tenant)
    if job.status not in FINAL_STATUSES:
        raise Conflict(f"The job is {job.status}: cancel it first.", code="job_not_ended")
    with database.write() as session:
        # What would find it again finds it no more.
        hidden = {"deleted_ms": now_ms(), "idempotency_key": None, "resume_key": None}
        session.execute(update(Job).where(Job.id == job_id).values(hidden))
        audit(session, job.tenant, "job.deleted", job_id)
