"""One request that a client waits for: an urgent job of its own, on the queues and fleet of all others."""

import time
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex

import msgspec
from celery import Celery
from sqlalchemy import select, update

from tasks.audit import audit
from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.dispatch import QueuedChunk, publish, queue_name
from tasks.errors import REQUEST_ERROR_MESSAGES, Conflict, NotFound, UserError, error_body
from tasks.fleet import live_workers
from tasks.ids import new_job_id
from tasks.jobs import cancel_job
from tasks.plan import estimate_tokens
from tasks.planned_file import PlannedFileWriter, PlannedRequest
from tasks.tables import Chunk, ChunkState, Job, JobKind, JobStatus, Lane, Result
from tasks.validation import ENDPOINTS, read_single

FIRST_POLL_S = 0.005
LONGEST_POLL_S = 0.1
"""The answer is looked for more and more seldom: short ones come back at once, long ones cost little."""


@dataclass(frozen=True)
class SingleAnswer:
    """The engine's answer, as it is."""

    status_code: int
    body: bytes


def answer_single(
    app: Celery, backends: Backends, tenant: str, endpoint: str, body: bytes, timeout_s: float
) -> SingleAnswer:
    """Run one request in the urgent lane and wait for its answer.

    Raises:
        UserError: the body is no request; or, with the code `timeout`, no answer came in time: the
            request is cancelled.
    """
    job = _start(app, backends, tenant, endpoint, body, timeout_s)
    try:
        answer = _wait(backends.database, job.id, timeout_s)
        if answer is None:
            _give_up(backends.database, job.id)
            raise UserError(_late(backends.database, job, timeout_s), code="timeout")
        return answer
    finally:
        # Nobody asks for it again; the sweeper removes it once it has ended.
        with backends.database.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(deleted_ms=now_ms()))


def _start(app: Celery, backends: Backends, tenant: str, endpoint: str, body: bytes, timeout_s: float) -> Job:
    if endpoint not in ENDPOINTS:
        raise NotFound("endpoint", endpoint, param="endpoint")
    head = read_single(body)
    entry = backends.settings.catalogue.get(head.model)
    if entry is None:
        raise NotFound("model", head.model, param="model", code="model_not_found")
    if not entry.serves(endpoint):
        raise UserError(f"The model {head.model!r} does not serve {endpoint}.", param="model")
    job_id = new_job_id()
    planned_key = f"planned/{job_id}-{token_hex(4)}"
    writer = PlannedFileWriter(backends.storage.writer(planned_key))
    _, length = writer.append([PlannedRequest(0, job_id, body)])
    writer.close()
    tokens = estimate_tokens(len(body), head.max_output_tokens)
    with backends.database.write() as session:
        now = session.execute(select(now_ms())).scalar_one()
        job = Job(
            id=job_id,
            tenant=tenant,
            kind=JobKind.SINGLE,
            endpoint=endpoint,
            model=head.model,
            lane=Lane.URGENT,
            # Nothing to validate that was not validated here.
            status=JobStatus.IN_PROGRESS,
            options={},
            total=1,
            estimated_tokens=tokens,
            planned_key=planned_key,
            created_ms=now,
            in_progress_ms=now,
            # Should this process die, the request ends all the same.
            deadline_ms=now + int(timeout_s * 1000),
        )
        session.add(job)
        session.flush()
        session.add(
            Chunk(
                job_id=job_id,
                seq=0,
                offset=0,
                length=length,
                requests=1,
                estimated_tokens=tokens,
                state=ChunkState.QUEUED,
                queued_ms=now,
            )
        )
        audit(session, tenant, "job.created", job_id, kind=JobKind.SINGLE)
    publish(app, [QueuedChunk(job_id, 0, 1, tokens, queue_name(head.model, Lane.URGENT))])
    return job


def _wait(database: Database, job_id: str, timeout_s: float) -> SingleAnswer | None:
    end = time.monotonic() + timeout_s
    pause_s = FIRST_POLL_S
    while True:
        with database.read() as session:
            result = session.execute(
                select(Result.status_code, Result.body, Result.error_code).where(Result.job_id == job_id)
            ).one_or_none()
        if result is not None:
            return _answer(*result)
        left_s = end - time.monotonic()
        if left_s <= 0:
            return None
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, LONGEST_POLL_S)


def _answer(status_code: int | None, body: bytes | None, error_code: str | None) -> SingleAnswer:
    if status_code is not None:
        return SingleAnswer(status_code, body or b"null")
    code = error_code or "engine_crash"
    refusal = error_body(REQUEST_ERROR_MESSAGES[code], kind="server_error", code=code)
    return SingleAnswer(504 if code == "batch_expired" else 500, msgspec.json.encode(refusal))


def _give_up(database: Database, job_id: str) -> None:
    # It may have ended, or run out of time, in this very moment.
    with suppress(Conflict):
        cancel_job(database, job_id)


def _late(database: Database, job: Job, timeout_s: float) -> str:
    if not live_workers(database, job.model):
        return f"No worker serves the model {job.model!r} at the moment; the request was cancelled."
    return f"No answer within {timeout_s:g} s; the request was cancelled."
