"""Removing deleted jobs: what belongs to them goes in small steps, their own row last."""

import structlog
from sqlalchemy import ColumnElement, and_, delete, or_, select, update
from sqlalchemy.orm import Session, aliased

from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.failpoints import Failpoint, failpoint
from tasks.faults import MACHINE_FAULTS
from tasks.tables import FINAL_STATUSES, File, Job, JobKind, JobStatus, Result

log = structlog.get_logger()

RESULTS_AT_ONCE = 5_000
"""Rows one transaction removes: other writers wait for it."""

SINGLE_KEPT_MS = 60_000
"""A single request whose time ran out so long ago has nobody left who waits: the web process is gone."""


def expendable_jobs() -> ColumnElement[bool]:
    """Jobs that have ended and that nobody can ask for any more."""
    child = aliased(Job)
    # A rerun reads the plan and the results of this one.
    is_read = select(child.id).where(child.parent_id == Job.id, child.status == JobStatus.VALIDATING).exists()
    is_forgotten = (Job.kind == JobKind.SINGLE) & (Job.deadline_ms < now_ms() - SINGLE_KEPT_MS)
    return and_(or_(Job.deleted_ms.is_not(None), is_forgotten), Job.status.in_(FINAL_STATUSES), ~is_read)


def purge_jobs(backends: Backends) -> int:
    """Remove the jobs that are expendable; returns how many. Safe to break off and to repeat."""
    with backends.database.read() as session:
        jobs = session.execute(select(Job.id, Job.planned_key).where(expendable_jobs())).all()
    purged = 0
    for job_id, planned_key in jobs:
        try:
            _purge_job(backends, job_id, planned_key)
            purged += 1
        except MACHINE_FAULTS as error:
            # One job's trouble must not keep the others waiting; it is tried again at the next pass.
            log.error("purge_failed", job=job_id, error=repr(error))
    return purged


def _purge_job(backends: Backends, job_id: str, planned_key: str | None) -> None:
    if planned_key is not None:
        backends.storage.delete(planned_key)
    failpoint(Failpoint.PURGE_UNSTORED)
    while _remove_results(backends.database, job_id):
        pass
    with backends.database.write() as session:
        # Its result files are rows only.
        session.execute(delete(File).where(File.job_id == job_id, File.purpose == "batch_output"))
        _leave_input(session, job_id)
        session.execute(delete(Job).where(Job.id == job_id))


def _leave_input(session: Session, job_id: str) -> None:
    """An input that was made with the job goes to a rerun whose results are joined to it, else away."""
    rerun = aliased(Job)
    heirs = select(rerun.id).where(rerun.input_file_id == File.id, rerun.deleted_ms.is_(None))
    own = update(File).where(File.job_id == job_id, File.deleted_ms.is_(None))
    # Its bytes are freed by its own purge.
    session.execute(own.where(~heirs.exists()).values(deleted_ms=now_ms()))
    oldest = heirs.order_by(rerun.created_ms, rerun.id).limit(1).scalar_subquery()
    session.execute(own.values(job_id=oldest))


def _remove_results(database: Database, job_id: str) -> int:
    with database.write() as session:
        some = select(Result.index).where(Result.job_id == job_id).order_by(Result.index)
        last = session.scalars(some.offset(RESULTS_AT_ONCE - 1).limit(1)).one_or_none()
        if last is None:
            session.execute(delete(Result).where(Result.job_id == job_id))
            return 0
        session.execute(delete(Result).where(Result.job_id == job_id, Result.index <= last))
        return RESULTS_AT_ONCE
