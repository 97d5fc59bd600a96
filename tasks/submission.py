"""Submitting: a job is recorded for an input file, once."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tasks.audit import audit
from tasks.backends import Backends
from tasks.backoff import backoff_s, jittered
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import Conflict, MachineError, NotFound, UserError
from tasks.faults import DATABASE_AWAY
from tasks.files import BATCH_PURPOSES, ROWS_PURPOSES, is_visible
from tasks.ids import new_job_id
from tasks.jobs import get_job
from tasks.rows import RowsSpec
from tasks.tables import FINAL_STATUSES, File, Job, JobKind, JobStatus, Lane
from tasks.validation import ENDPOINTS

ASKED_TIMES = 5
FIRST_ASKED_S = 0.1
LONGEST_ASKED_S = 1.0
"""How often and how soon a database that went away at a commit is asked what became of it: 3 s in all."""


class OutcomeUnknown(MachineError):
    """Whether the job was made cannot be told."""

    def __init__(self) -> None:
        super().__init__(
            "The database went away at the last moment: whether the job was accepted is not known. "
            "Repeat the submission with the same Idempotency-Key."
        )


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What a submission asks for."""

    endpoint: str
    input_file_id: str
    kind: JobKind = JobKind.REQUESTS
    parent_id: str | None = None
    model: str | None = None
    """Served name; null: the first line names it."""
    lane: Lane = Lane.NORMAL
    tenant: str = "local"
    window_s: float | None = None
    """Seconds until the job expires; null: as the settings say."""
    deadline_ms: int | None = None
    """When it expires, instead of the window."""
    metadata: dict[str, str] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    output_expires_s: int | None = None
    idempotency_key: str | None = None
    idempotency_sha256: str | None = None
    """Of the submission as the client sent it."""
    resume_key: str | None = None
    owns_input: bool = False
    """The input was made together with the job: it is kept, and deleted, with it."""


def create_job(backends: Backends, request: JobRequest) -> Job:
    """Record a job in `validating`; intake takes it from there.

    With an idempotency key that came before, the job that was made then.

    Raises:
        UserError: an unknown endpoint or model, an unfit file, or a deadline that has passed.
        NotFound: no such input file.
        Conflict: the idempotency key came with another submission.
        OutcomeUnknown: the database went away at the commit, and did not come back to be asked.
    """
    check_target(backends, request)
    job_id = new_job_id()
    try:
        with backends.database.write() as session:
            return _earlier(session, request) or _insert(backends, session, request, job_id)
    except DATABASE_AWAY as error:
        # Perhaps it went away after it had committed: what is answered must be what is.
        job = _committed(backends.database, job_id, error)
        if job is None:
            raise
        return job
    except IntegrityError:
        # Another process was first with the same idempotency key.
        with backends.database.write() as session:
            earlier = _earlier(session, request)
        if earlier is None:
            raise
        return earlier


def _committed(database: Database, job_id: str, fault: Exception) -> Job | None:
    """The job, if a commit that seemed to fail was made after all."""
    for failures in range(1, ASKED_TIMES + 1):
        try:
            with database.read() as session:
                return session.get(Job, job_id)
        except DATABASE_AWAY:
            time.sleep(jittered(backoff_s(failures, FIRST_ASKED_S, LONGEST_ASKED_S)))
    raise OutcomeUnknown from fault


def rerun_job(
    backends: Backends, tenant: str, job_id: str, *, lane: Lane | None = None, window_s: float | None = None
) -> Job:
    """A new job of everything in an ended job that did not succeed: failed, expired or cancelled.

    Raises:
        NotFound: there is no such job.
        Conflict: it has not ended, its input is gone, or all of it succeeded.
    """
    parent = get_job(backends.database, job_id, tenant)
    if parent.status not in FINAL_STATUSES:
        raise Conflict(f"The job is {parent.status}: wait for its end, or cancel it.", code="job_not_ended")
    if parent.total == 0 or parent.completed == parent.total:
        raise Conflict("There is nothing to run again.", code="nothing_to_rerun")
    if parent.planned_key is None or parent.input_file_id is None:
        raise Conflict("The requests of this job are no longer kept.", code="input_gone")
    return create_job(
        backends,
        JobRequest(
            endpoint=parent.endpoint,
            input_file_id=parent.input_file_id,
            kind=JobKind.RERUN,
            parent_id=parent.id,
            model=parent.model,
            # Of a job from rows: its results are joined to the same rows.
            options=parent.options,
            lane=lane or Lane(parent.lane),
            tenant=tenant,
            window_s=window_s,
            metadata=parent.job_metadata,
            output_expires_s=parent.output_expires_s,
        ),
    )


def check_target(backends: Backends, request: JobRequest) -> None:
    """Find out whether such a job could run at all, before its input is looked at.

    Raises:
        UserError: an unknown endpoint or model, one that does not fit the other, or a wrong template.
    """
    if request.endpoint not in ENDPOINTS:
        known = ", ".join(ENDPOINTS)
        raise UserError(f"No endpoint {request.endpoint!r}; known: {known}.", param="endpoint")
    if request.kind is JobKind.ROWS:
        if request.model is None:
            raise UserError("'model' is missing: rows do not name one.", param="model")
        RowsSpec.from_options(request.options).check(request.endpoint)
    if request.model is None:
        return
    entry = backends.settings.catalogue.get(request.model)
    if entry is None:
        raise UserError(
            f"The model {request.model!r} is not in the catalogue.", code="model_not_found", param="model"
        )
    if not entry.serves(request.endpoint):
        raise UserError(f"The model {request.model!r} does not serve {request.endpoint}.", param="endpoint")


def _earlier(session: Session, request: JobRequest) -> Job | None:
    if request.idempotency_key is None:
        return None
    job = session.scalars(
        select(Job).where(Job.tenant == request.tenant, Job.idempotency_key == request.idempotency_key)
    ).one_or_none()
    if job is not None and job.idempotency_sha256 != request.idempotency_sha256:
        raise Conflict(
            "This Idempotency-Key was used for another submission.",
            code="idempotency_key_reused",
            param="Idempotency-Key",
        )
    return job


def input_file(session: Session, request: JobRequest) -> File:
    """The input that a submission names.

    Raises:
        NotFound: there is none.
        UserError: its purpose is another.
    """
    query = select(File).where(File.id == request.input_file_id, File.tenant == request.tenant)
    if request.kind is not JobKind.RERUN:
        # The input of an earlier job counts as long as its bytes are there.
        query = query.where(is_visible())
    # Shared: whoever deletes the file waits until the job is there, for which its bytes are then kept.
    file = session.scalars(query.with_for_update(read=True)).one_or_none()
    if file is None:
        raise NotFound("file", request.input_file_id, param="input_file_id")
    purposes = ROWS_PURPOSES if request.kind is JobKind.ROWS else BATCH_PURPOSES
    if request.kind is not JobKind.RERUN and file.purpose not in purposes:
        wanted = " or ".join(repr(purpose) for purpose in sorted(purposes))
        raise UserError(
            f"The file has the purpose {file.purpose!r}; an input needs {wanted}.", param="input_file_id"
        )
    return file


def _insert(backends: Backends, session: Session, request: JobRequest, job_id: str) -> Job:
    file = input_file(session, request)
    created = session.execute(select(now_ms())).scalar_one()
    window_ms = int((request.window_s or backends.settings.job_window_s) * 1000)
    deadline_ms = created + window_ms if request.deadline_ms is None else request.deadline_ms
    if deadline_ms <= created:
        raise UserError("'deadline' has passed.", param="deadline")
    job = Job(
        id=job_id,
        tenant=request.tenant,
        kind=request.kind,
        parent_id=request.parent_id,
        endpoint=request.endpoint,
        model=request.model,
        lane=request.lane,
        status=JobStatus.VALIDATING,
        input_file_id=file.id,
        idempotency_key=request.idempotency_key,
        idempotency_sha256=request.idempotency_sha256,
        resume_key=request.resume_key,
        job_metadata=request.metadata,
        options=request.options,
        output_expires_s=request.output_expires_s,
        created_ms=created,
        deadline_ms=deadline_ms,
    )
    session.add(job)
    if request.owns_input and file.job_id is None:
        file.job_id, file.expires_ms = job.id, None
    # Its numbers start at zero, which the database says only once it is asked.
    session.flush()
    session.refresh(job)
    audit(session, request.tenant, "job.created", job.id, **_audited(request))
    return job


def _audited(request: JobRequest) -> dict[str, Any]:
    """What the audit trail keeps of a submission: no prompts, no templates."""
    left_out = ("metadata", "tenant", "options", "idempotency_key", "idempotency_sha256")
    return {name: value for name, value in asdict(request).items() if name not in left_out}


def find_resumable(database: Database, resume_key: str) -> Job | None:
    """The job that an earlier run of the same command made and did not deliver."""
    with database.read() as session:
        return session.scalars(select(Job).where(Job.resume_key == resume_key)).one_or_none()


def mark_delivered(database: Database, job_id: str) -> None:
    """The results are where the user asked for them: repeating the command starts anew."""
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(resume_key=None))
