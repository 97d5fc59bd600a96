"""The net under everything event-driven: finds what is stuck and puts it back. Periodic and idempotent."""

import structlog
from celery import Celery
from sqlalchemy import Select, delete, select, update

from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.dispatch import fill_runway, republish_missing
from tasks.errors import NotFound
from tasks.faults import MACHINE_FAULTS
from tasks.files import purge_files
from tasks.finalise import expire_overdue, settle
from tasks.purge import purge_jobs
from tasks.tables import Chunk, ChunkState, Job, JobStatus, Worker
from tasks.uploads import purge_uploads

log = structlog.get_logger()

SILENT_WORKER_MS = 60_000
"""Heartbeats come every few seconds; a busy database is no reason to forget a worker."""


def sweep(app: Celery, backends: Backends) -> list[str]:
    """One pass over all that may be stuck; returns the jobs whose intake nobody has."""
    database = backends.database
    expired = take_back_expired_leases(database)
    if expired:
        log.warning("leases_expired", chunks=expired)
    expire_overdue(database)
    _forget_silent_workers(database)
    for job_id in _settleable(database):
        try:
            settle(backends, job_id)
        except NotFound:
            pass  # another sweep was faster, and removed it
        except MACHINE_FAULTS as error:
            # One job's trouble must not keep the others waiting; it is tried again at the next pass.
            log.error("settle_failed", job=job_id, error=repr(error))
    for model in _models_with_pending(database):
        fill_runway(app, backends, model)
    purge_jobs(backends)
    purge_uploads(backends)
    purge_files(backends)
    # Last, because it alone asks the broker, which may not answer.
    republish_missing(app, database)
    return _abandoned_intakes(database)


def _forget_silent_workers(database: Database) -> None:
    """Remove the rows of workers that were killed before they could do so themselves."""
    silent = Worker.heartbeat_ms < now_ms() - SILENT_WORKER_MS
    with database.read() as session:
        if session.execute(select(Worker.id).where(silent).limit(1)).first() is None:
            return
    with database.write() as session:
        session.execute(delete(Worker).where(silent))


def take_back_expired_leases(database: Database) -> int:
    """Chunks whose worker fell silent go back to be run again; returns how many."""
    with database.read() as session:
        if session.execute(_expired_leases().limit(1)).first() is None:
            return 0
    with database.write() as session:
        taken = session.execute(
            update(Chunk)
            .where(Chunk.state == ChunkState.LEASED, Chunk.lease_expires_ms < now_ms())
            .values(state=ChunkState.PENDING, lease_owner=None, lease_expires_ms=None)
            .returning(Chunk.seq)
        )
        return len(taken.all())


def _expired_leases() -> Select[int]:
    return select(Chunk.seq).where(Chunk.state == ChunkState.LEASED, Chunk.lease_expires_ms < now_ms())


def _settleable(database: Database) -> list[str]:
    with database.read() as session:
        return list(
            session.scalars(
                select(Job.id).where(
                    Job.status.in_([JobStatus.FINALIZING, JobStatus.CANCELLING])
                    | ((Job.status == JobStatus.IN_PROGRESS) & (Job.completed + Job.failed >= Job.total))
                )
            )
        )


def _models_with_pending(database: Database) -> list[str]:
    with database.read() as session:
        models = session.scalars(
            select(Job.model)
            .where(
                Job.status == JobStatus.IN_PROGRESS,
                select(Chunk.seq).where(Chunk.job_id == Job.id, Chunk.state == ChunkState.PENDING).exists(),
            )
            .distinct()
        )
        return [model for model in models if model is not None]


def _abandoned_intakes(database: Database) -> list[str]:
    with database.read() as session:
        return list(
            session.scalars(
                select(Job.id).where(
                    Job.status == JobStatus.VALIDATING,
                    Job.intake_expires_ms.is_(None) | (Job.intake_expires_ms < now_ms()),
                )
            )
        )
