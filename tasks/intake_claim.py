"""Who may read a job's input, and what comes of it: a plan, or faults."""

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, insert, select, update

from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import LineFault
from tasks.jobs import move_job
from tasks.tables import Chunk, Job, JobStatus


@dataclass(frozen=True)
class IntakeClaim:
    """One process's right to read a job's input, until it expires or is taken over."""

    job_id: str
    token: int
    attempt: int
    """Processes that began, this one included, less those that saw a fault of the machine."""


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
                intake_attempts=Job.intake_attempts + 1,
                intake_expires_ms=now_ms() + int(lease_s * 1000),
                intake_bytes=0,
            )
            .returning(Job.intake_token, Job.intake_attempts)
        ).one_or_none()
    return None if row is None else IntakeClaim(job_id, row.intake_token, row.intake_attempts)


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


def put_off_intake(database: Database, claim: IntakeClaim, pause_s: float) -> None:
    """Leave the input to whoever comes after the pause; this attempt does not count."""
    with database.write() as session:
        session.execute(
            update(Job)
            .where(*_claim_holds(claim))
            .values(
                intake_attempts=Job.intake_attempts - 1,
                intake_expires_ms=now_ms() + int(pause_s * 1000),
                intake_bytes=0,
            )
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
