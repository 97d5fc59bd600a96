"""The life of a job: its states, and each move between them as one guarded write."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, insert, select, update
from sqlalchemy.orm import Session

from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import Conflict, LineFault, NotFound, UserError
from tasks.ids import new_file_id, new_job_id
from tasks.tables import FINAL_STATUSES, Audit, Chunk, ChunkState, File, Job, JobStatus, Lane
from tasks.validation import ENDPOINTS

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


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What a submission asks for."""

    endpoint: str
    input_file_id: str
    model: str | None = None
    """Served name; null: the first line names it."""
    lane: Lane = Lane.NORMAL
    tenant: str = "local"
    window_s: float | None = None
    """Seconds until the job expires; null: as the settings say."""
    metadata: dict[str, str] | None = None
    resume_key: str | None = None


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
    return True


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


def audit(session: Session, tenant: str, action: str, subject: str, **detail: Any) -> None:
    """Append one line to the audit trail."""
    session.execute(
        insert(Audit).values(at_ms=now_ms(), tenant=tenant, action=action, subject=subject, detail=detail)
    )


def store_file(
    backends: Backends,
    blocks: Iterable[bytes],
    *,
    filename: str,
    tenant: str = "local",
    purpose: str = "batch",
) -> File:
    """Stream a file into storage and record it.

    Raises:
        UserError: it is larger than `max_file_bytes`.
    """
    file_id = new_file_id()
    key = f"files/{file_id}"
    size, sha256 = backends.storage.put(key, _up_to(blocks, backends.settings.max_file_bytes))
    with backends.database.write() as session:
        created = session.execute(select(now_ms())).scalar_one()
        file = File(
            id=file_id,
            tenant=tenant,
            purpose=purpose,
            filename=filename,
            bytes=size,
            sha256=sha256,
            storage_key=key,
            created_ms=created,
            expires_ms=None,
        )
        session.add(file)
    return file


def _up_to(blocks: Iterable[bytes], limit_bytes: int) -> Iterable[bytes]:
    size = 0
    for block in blocks:
        size += len(block)
        if size > limit_bytes:
            raise UserError(
                f"The file is larger than {limit_bytes} bytes (max_file_bytes).",
                code="file_too_large",
                param="file",
            )
        yield block


def create_job(backends: Backends, request: JobRequest) -> Job:
    """Record a job in `validating`; intake takes it from there.

    Raises:
        UserError: an unknown endpoint, model or file.
    """
    if request.endpoint not in ENDPOINTS:
        known = ", ".join(ENDPOINTS)
        raise UserError(f"No endpoint {request.endpoint!r}; known: {known}.", param="endpoint")
    if request.model is not None and request.model not in backends.settings.catalogue:
        raise UserError(
            f"The model {request.model!r} is not in the catalogue.", code="model_not_found", param="model"
        )
    window_ms = int((request.window_s or backends.settings.job_window_s) * 1000)
    with backends.database.write() as session:
        file = session.get(File, request.input_file_id)
        if file is None or file.tenant != request.tenant:
            raise NotFound("file", request.input_file_id)
        created = session.execute(select(now_ms())).scalar_one()
        job = Job(
            id=new_job_id(),
            tenant=request.tenant,
            endpoint=request.endpoint,
            model=request.model,
            lane=request.lane,
            status=JobStatus.VALIDATING,
            input_file_id=file.id,
            resume_key=request.resume_key,
            job_metadata=request.metadata,
            options={},
            created_ms=created,
            deadline_ms=created + window_ms,
        )
        session.add(job)
        audit(session, request.tenant, "job.created", job.id, **_json(request))
    return job


def _json(request: JobRequest) -> dict[str, Any]:
    return {name: value for name, value in asdict(request).items() if name not in ("metadata", "tenant")}


def get_job(database: Database, job_id: str) -> Job:
    """The job as it is now.

    Raises:
        NotFound: there is none.
    """
    with database.read() as session:
        job = session.get(Job, job_id)
    if job is None:
        raise NotFound("job", job_id)
    return job


def find_resumable(database: Database, resume_key: str) -> Job | None:
    """The job that an earlier run of the same command made and did not deliver."""
    with database.read() as session:
        return session.scalars(select(Job).where(Job.resume_key == resume_key)).one_or_none()


def mark_delivered(database: Database, job_id: str) -> None:
    """The results are where the user asked for them: repeating the command starts anew."""
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(resume_key=None))


def cancel_job(database: Database, job_id: str) -> Job:
    """Stop a job: nothing more of it is started, finished results are kept.

    Cancelling twice is fine.

    Raises:
        NotFound: there is no such job.
        Conflict: it is finalising or has ended.
    """
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
    job = get_job(database, job_id)
    if not stopped and job.status not in (JobStatus.CANCELLING, JobStatus.CANCELLED):
        raise Conflict(
            f"The job is {job.status} and can no longer be cancelled.", code="batch_not_cancellable"
        )
    return job


@dataclass(frozen=True)
class IntakeClaim:
    """One process's right to read a job's input, until it expires or is taken over."""

    job_id: str
    token: int
    endpoint: str
    model: str | None
    storage_key: str


def claim_intake(database: Database, job_id: str, lease_s: float) -> IntakeClaim | None:
    """Take the intake of a job in `validating` that no live process reads."""
    with database.write() as session:
        row = session.execute(
            update(Job)
            .where(
                Job.id == job_id,
                Job.status == JobStatus.VALIDATING,
                (Job.intake_expires_ms.is_(None)) | (Job.intake_expires_ms < now_ms()),
            )
            .values(
                intake_token=Job.intake_token + 1,
                intake_expires_ms=now_ms() + int(lease_s * 1000),
                intake_bytes=0,
            )
            .returning(Job.intake_token, Job.endpoint, Job.model, Job.input_file_id)
        ).one_or_none()
        if row is None:
            return None
        key = session.execute(select(File.storage_key).where(File.id == row.input_file_id)).scalar_one()
    return IntakeClaim(job_id, row.intake_token, row.endpoint, row.model, key)


def renew_intake(database: Database, claim: IntakeClaim, read_bytes: int, lease_s: float) -> bool:
    """Keep the claim and show how far intake is; false when the claim or the job is gone."""
    with database.write() as session:
        return bool(
            session.execute(
                update(Job)
                .where(*_claim_holds(claim))
                .values(intake_bytes=read_bytes, intake_expires_ms=now_ms() + int(lease_s * 1000))
            ).rowcount  # type: ignore[attr-defined]
        )


def _claim_holds(claim: IntakeClaim) -> list[ColumnElement[bool]]:
    return [
        Job.id == claim.job_id,
        Job.status == JobStatus.VALIDATING,
        Job.intake_token == claim.token,
    ]


@dataclass(frozen=True)
class PlannedJob:
    """What intake found in a good input."""

    model: str
    planned_key: str
    total: int
    estimated_tokens: int
    input_bytes: int
    chunks: list[dict[str, Any]]
    """Rows of `Chunk` without its job."""


def accept_plan(database: Database, claim: IntakeClaim, plan: PlannedJob) -> bool:
    """Start the job, if the claim still holds: chunks and status in one transaction."""
    with database.write() as session:
        held = session.execute(select(Job.id).where(*_claim_holds(claim)).with_for_update()).one_or_none()
        if held is None:
            return False
        session.connection().execute(
            insert(Chunk), [{"job_id": claim.job_id, **chunk} for chunk in plan.chunks]
        )
        return move_job(
            session,
            claim.job_id,
            {JobStatus.VALIDATING},
            JobStatus.IN_PROGRESS,
            model=plan.model,
            planned_key=plan.planned_key,
            total=plan.total,
            estimated_tokens=plan.estimated_tokens,
            intake_bytes=plan.input_bytes,
        )


def reject_input(database: Database, claim: IntakeClaim, faults: list[LineFault]) -> None:
    """End the job as `failed`, with the faults of its input, if the claim still holds."""
    with database.write() as session:
        held = session.execute(select(Job.id).where(*_claim_holds(claim)).with_for_update()).one_or_none()
        if held is not None:
            move_job(
                session,
                claim.job_id,
                {JobStatus.VALIDATING},
                JobStatus.FAILED,
                errors=[msgspec.to_builtins(fault) for fault in faults],
            )
