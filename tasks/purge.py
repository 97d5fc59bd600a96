"""Removing deleted jobs: what belongs to them goes in small steps, their own row last."""

from sqlalchemy import delete, select, update
from sqlalchemy.orm import aliased

from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.tables import FINAL_STATUSES, File, Job, JobStatus, Result

RESULTS_AT_ONCE = 5_000
"""Rows one transaction removes: other writers wait for it."""


def purge_jobs(backends: Backends) -> int:
    """Remove the deleted jobs that have ended; returns how many. Safe to break off and to repeat."""
    child = aliased(Job)
    # A rerun reads the plan and the results of this one.
    is_read = select(child.id).where(child.parent_id == Job.id, child.status == JobStatus.VALIDATING).exists()
    with backends.database.read() as session:
        jobs = session.execute(
            select(Job.id, Job.planned_key).where(
                Job.deleted_ms.is_not(None), Job.status.in_(FINAL_STATUSES), ~is_read
            )
        ).all()
    for job_id, planned_key in jobs:
        if planned_key is not None:
            backends.storage.delete(planned_key)
        while _remove_results(backends.database, job_id):
            pass
        with backends.database.write() as session:
            # Its result files are rows only; an input that was made with it is freed by its own purge.
            session.execute(delete(File).where(File.job_id == job_id, File.purpose == "batch_output"))
            session.execute(
                update(File)
                .where(File.job_id == job_id, File.deleted_ms.is_(None))
                .values(deleted_ms=now_ms())
            )
            session.execute(delete(Job).where(Job.id == job_id))
    return len(jobs)


def _remove_results(database: Database, job_id: str) -> int:
    with database.write() as session:
        some = select(Result.index).where(Result.job_id == job_id).order_by(Result.index)
        last = session.scalars(some.offset(RESULTS_AT_ONCE - 1).limit(1)).one_or_none()
        if last is None:
            session.execute(delete(Result).where(Result.job_id == job_id))
            return 0
        session.execute(delete(Result).where(Result.job_id == job_id, Result.index <= last))
        return RESULTS_AT_ONCE
