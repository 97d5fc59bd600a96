"""The life of a chunk: leased, its results recorded under the lease, finished or given back."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import LeaseLost
from tasks.figures import count_figures
from tasks.jobs import RUNNABLE, WRITABLE
from tasks.outcomes import Outcome
from tasks.planned_file import PlannedRequest, read_frame
from tasks.results import line_bytes
from tasks.tables import Chunk, ChunkState, Job, JobStatus, Lane, Result


@dataclass(frozen=True)
class Lease:
    """A worker's claim on a chunk. Everything written for the chunk carries its token."""

    job_id: str
    seq: int
    token: int
    attempt: int
    """Starts that count against `max_attempts`, this one included."""
    endpoint: str
    lane: Lane
    planned_key: str
    offset: int
    length: int


@dataclass(frozen=True)
class Recorded:
    """What the job looks like after a write."""

    job_status: JobStatus
    all_results_in: bool


def lease_chunk(database: Database, job_id: str, seq: int, owner: str, lease_s: float) -> Lease | None:
    """Claim a chunk that is on the runway.

    None when somebody else has it, it is finished, or its job no longer runs: the message is a
    repetition and is dropped.
    """
    with database.write() as session:
        job = session.execute(
            select(Job.endpoint, Job.lane, Job.planned_key).where(
                Job.id == job_id, Job.status.in_(RUNNABLE), Job.planned_key.is_not(None)
            )
        ).one_or_none()
        if job is None:
            return None
        chunk = session.execute(
            update(Chunk)
            .where(Chunk.job_id == job_id, Chunk.seq == seq, Chunk.state == ChunkState.QUEUED)
            .values(
                state=ChunkState.LEASED,
                attempt=Chunk.attempt + 1,
                lease_token=Chunk.lease_token + 1,
                lease_owner=owner,
                lease_expires_ms=now_ms() + int(lease_s * 1000),
            )
            .returning(Chunk.lease_token, Chunk.attempt, Chunk.offset, Chunk.length)
        ).one_or_none()
    if chunk is None:
        return None
    return Lease(
        job_id=job_id,
        seq=seq,
        token=chunk.lease_token,
        attempt=chunk.attempt,
        endpoint=job.endpoint,
        lane=Lane(job.lane),
        planned_key=job.planned_key,
        offset=chunk.offset,
        length=chunk.length,
    )


def unfinished_requests(backends: Backends, lease: Lease) -> list[PlannedRequest]:
    """The requests of a leased chunk that have no result yet."""
    requests = read_frame(backends.storage, lease.planned_key, lease.offset, lease.length)
    if lease.token == 1:
        # Nobody had it before. (The attempt does not say so: a drained worker takes its own back.)
        return requests
    with backends.database.read() as session:
        done = finished_indices(session, lease.job_id, [request.index for request in requests])
    return [request for request in requests if request.index not in done]


def finished_indices(session: Session, job_id: str, indices: Collection[int]) -> set[int]:
    """Which of these requests have a result."""
    return set(
        session.scalars(select(Result.index).where(Result.job_id == job_id, Result.index.in_(indices)))
    )


def record_results(
    database: Database,
    lease: Lease,
    outcomes: Sequence[Outcome],
    *,
    worker: str,
    lease_s: float,
    finish: bool,
) -> Recorded:
    """Write results, move the job's counters with them and renew the lease, in one transaction.

    With `finish` the chunk is done and the lease ends. Without outcomes it only renews.

    Raises:
        LeaseLost: another worker has the chunk, or the job has ended; nothing was written.
    """
    chunk_values: dict[str, Any] = (
        {"state": ChunkState.DONE, "lease_owner": None, "lease_expires_ms": None}
        if finish
        else {"lease_expires_ms": now_ms() + int(lease_s * 1000)}
    )
    try:
        with database.write() as session:
            _fence(session, lease, chunk_values)
            return add_results(session, lease.job_id, lease.seq, outcomes, worker)
    except IntegrityError:
        # A result that is already there was counted when it was written: keep it, add the others.
        with database.write() as session:
            _fence(session, lease, chunk_values)
            done = finished_indices(session, lease.job_id, [outcome.index for outcome in outcomes])
            missing = [outcome for outcome in outcomes if outcome.index not in done]
            return add_results(session, lease.job_id, lease.seq, missing, worker)


def start_alone(database: Database, lease: Lease, index: int) -> int:
    """Note that a request is about to run with nothing else in the engine; returns how often it did so far.

    Counted before it starts, so that it also counts when nobody is left to tell how it ended.

    Raises:
        LeaseLost: another worker has the chunk.
    """
    repeated = case((Chunk.alone_index == index, Chunk.alone_starts + 1), else_=1)
    with database.write() as session:
        starts = session.execute(
            update(Chunk)
            .where(*_held_by(lease))
            .values(alone_index=index, alone_starts=repeated)
            .returning(Chunk.alone_starts)
        ).scalar_one_or_none()
    if starts is None:
        raise LeaseLost(f"chunk {lease.job_id}/{lease.seq} is no longer leased under token {lease.token}")
    return starts


def release_chunk(database: Database, lease: Lease, *, attempts: int) -> None:
    """Give a chunk back; its unfinished requests will run again. A lost lease is fine.

    `attempts` is the number of starts that count from now on: `lease.attempt`, or one less when this start
    was not the chunk's fault.
    """
    with database.write() as session:
        session.execute(
            update(Chunk)
            .where(*_held_by(lease))
            .values(
                state=ChunkState.PENDING,
                attempt=attempts,
                lease_owner=None,
                lease_expires_ms=None,
            )
        )


def _held_by(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    return (
        Chunk.job_id == lease.job_id,
        Chunk.seq == lease.seq,
        Chunk.state == ChunkState.LEASED,
        Chunk.lease_token == lease.token,
    )


def _fence(session: Session, lease: Lease, values: dict[str, Any]) -> None:
    held = session.execute(update(Chunk).where(*_held_by(lease)).values(values).returning(Chunk.seq))
    if held.one_or_none() is None:
        raise LeaseLost(f"chunk {lease.job_id}/{lease.seq} is no longer leased under token {lease.token}")


def add_results(
    session: Session, job_id: str, seq: int, outcomes: Sequence[Outcome], worker: str
) -> Recorded:
    """Add result rows of one chunk and move the job's counters and figures with them.

    Raises:
        IntegrityError: one of the results is already there.
        LeaseLost: the job has ended.
    """
    now = session.execute(select(now_ms())).scalar_one()
    _insert(session, job_id, seq, outcomes, worker, now)
    succeeded = [outcome for outcome in outcomes if outcome.succeeded]
    output_bytes = sum(line_bytes(job_id, outcome) for outcome in succeeded)
    all_bytes = sum(line_bytes(job_id, outcome) for outcome in outcomes)
    row = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.status.in_({*WRITABLE, JobStatus.FINALIZING}))
        .values(
            completed=Job.completed + len(succeeded),
            failed=Job.failed + len(outcomes) - len(succeeded),
            input_tokens=Job.input_tokens + sum(outcome.input_tokens for outcome in outcomes),
            cached_tokens=Job.cached_tokens + sum(outcome.cached_tokens for outcome in outcomes),
            output_tokens=Job.output_tokens + sum(outcome.output_tokens for outcome in outcomes),
            reasoning_tokens=Job.reasoning_tokens + sum(outcome.reasoning_tokens for outcome in outcomes),
            output_bytes=Job.output_bytes + output_bytes,
            error_bytes=Job.error_bytes + all_bytes - output_bytes,
        )
        .returning(Job.status, Job.total, Job.completed, Job.failed, Job.in_progress_ms)
    ).one_or_none()
    if row is None:
        raise LeaseLost(f"job {job_id} has ended")
    count_figures(session, job_id, row.in_progress_ms, now, outcomes)
    return Recorded(JobStatus(row.status), row.completed + row.failed >= row.total)


def _insert(
    session: Session, job_id: str, seq: int, outcomes: Sequence[Outcome], worker: str, finished_ms: int
) -> None:
    if not outcomes:
        return
    session.connection().execute(
        insert(Result),
        [
            {
                "job_id": job_id,
                "idx": outcome.index,
                "chunk": seq,
                "custom_id": outcome.custom_id,
                "status_code": outcome.status_code,
                "body": outcome.body,
                "error_code": outcome.error_code,
                "input_tokens": outcome.input_tokens,
                "output_tokens": outcome.output_tokens,
                "duration_ms": outcome.duration_ms,
                "finished_ms": finished_ms,
                "worker": worker,
            }
            for outcome in outcomes
        ],
    )
