"""What is removed by rule, and when: said before it is done, if somebody asks."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, update

from config.settings import Settings
from tasks.audit import audit
from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.files import expendable_files, purge_files
from tasks.orphans import find_orphans, remove_orphans
from tasks.purge import expendable_jobs, purge_jobs
from tasks.tables import FINAL_STATUSES, File, Job, JobKind

JOBS_AT_ONCE = 500
"""Jobs one transaction hides: other writers wait for it."""


@dataclass(frozen=True)
class Due:
    """What one rule removes now."""

    rule: str
    what: str
    count: int
    size_bytes: int


def due(backends: Backends) -> list[Due]:
    """What all rules would remove now, in the order in which they are applied."""
    settings = backends.settings
    orphans = [size for _, size in find_orphans(backends)]
    with backends.database.read() as session:
        jobs, results, result_bytes = session.execute(
            select(
                func.count(),
                func.sum(Job.completed + Job.failed),
                func.sum(Job.output_bytes + Job.error_bytes),
            ).where(*_expired_jobs(settings))
        ).one()
        deleted, deleted_bytes = session.execute(
            select(func.count(), func.sum(Job.output_bytes + Job.error_bytes)).where(expendable_jobs())
        ).one()
        files, file_bytes = session.execute(
            select(func.count(), func.sum(File.bytes)).where(expendable_files())
        ).one()
    seconds = settings.job_expires_s
    jobs_rule = (
        "ended jobs are kept: job_expires_s is not set"
        if seconds is None
        else f"ended jobs are kept for {seconds:g} s (job_expires_s)"
    )
    return [
        Due(jobs_rule, f"jobs with {results or 0:,} results", jobs, result_bytes or 0),
        Due("deleted jobs are removed", "jobs", deleted, deleted_bytes or 0),
        Due(
            "files go when they expired or were deleted and no job needs them",
            "files",
            files,
            file_bytes or 0,
        ),
        Due("objects that no row names are kept for a day", "objects", len(orphans), sum(orphans)),
    ]


def apply_rules(backends: Backends, tell: Callable[[str], None] = lambda _: None) -> None:
    """Remove all that is due."""
    tell(f"jobs that expired: {expire_jobs(backends):,}")
    tell(f"jobs removed: {purge_jobs(backends):,}")
    tell(f"files removed: {purge_files(backends):,}")
    tell(f"objects removed: {remove_orphans(backends):,}")


def expire_jobs(backends: Backends) -> int:
    """Delete jobs that ended longer ago than they are kept; returns how many. Their rows go step by step."""
    if backends.settings.job_expires_s is None:
        return 0
    expired = 0
    while True:
        with backends.database.write() as session:
            some = select(Job.id).where(*_expired_jobs(backends.settings)).limit(JOBS_AT_ONCE)
            hidden = session.execute(
                update(Job)
                .where(Job.id.in_(some))
                .values(deleted_ms=now_ms(), idempotency_key=None, resume_key=None)
                .returning(Job.id, Job.tenant)
            ).all()
            for job_id, tenant in hidden:
                audit(session, tenant, "job.kept_long_enough", job_id)
        expired += len(hidden)
        if len(hidden) < JOBS_AT_ONCE:
            return expired


def _expired_jobs(settings: Settings) -> tuple[ColumnElement[bool], ...]:
    ended_ms = func.coalesce(Job.completed_ms, Job.failed_ms, Job.expired_ms, Job.cancelled_ms)
    kept_ms = int((settings.job_expires_s or 0) * 1000)
    return (
        Job.status.in_(FINAL_STATUSES),
        Job.kind != JobKind.SINGLE,
        Job.deleted_ms.is_(None),
        ended_ms < now_ms() - kept_ms if settings.job_expires_s is not None else Job.id.is_(None),
    )
