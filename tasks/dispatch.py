"""Dispatch: keeps the runway of each model full, in order of priority."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from celery import Celery
from sqlalchemy import Select, and_, func, select, tuple_, update

from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.failpoints import Failpoint, failpoint
from tasks.messages import Message, broker_is_away, send, waiting_messages
from tasks.tables import Chunk, ChunkState, Job, JobStatus, Lane

log = structlog.get_logger()

CHUNK_TASK = "gristmill.chunk"
"""Name of the Celery task that runs a chunk; its body is in `workers`."""

REPUBLISH_AFTER_MS = 4_000
"""How long a queued chunk is left alone before its message is looked for: longer than a worker takes from
the message to the lease, and short enough that a broker that lost everything stops nobody for long."""


@dataclass(frozen=True)
class WaitingJob:
    """A job that has chunks in the database only."""

    job_id: str
    lane: Lane
    created_ms: int
    pending_chunks: int


@dataclass(frozen=True)
class QueuedChunk:
    """A chunk that goes onto, or is on, the runway."""

    job_id: str
    seq: int
    requests: int
    tokens: int
    queue: str


def queue_name(model: str, lane: Lane) -> str:
    """The Celery queue of a model's lane."""
    return f"{model}.{lane}"


def choose_next(waiting: Sequence[WaitingJob], room: int) -> list[tuple[str, int]]:
    """Which jobs get how many of `room` chunks: the more urgent lane first, then the older job."""
    chosen: list[tuple[str, int]] = []
    for job in sorted(waiting, key=lambda job: (job.lane.rank, job.created_ms, job.job_id)):
        if room <= 0:
            break
        count = min(room, job.pending_chunks)
        chosen.append((job.job_id, count))
        room -= count
    return chosen


def fill_runway(app: Celery, backends: Backends, model: str) -> int:
    """Put chunks of a model onto its queues as long as there is room; returns how many."""
    if broker_is_away(app):
        return 0
    chunks = _take_pending(backends.database, model, backends.settings.runway_chunks)
    if chunks:
        failpoint(Failpoint.RUNWAY_TAKEN)
        publish(app, chunks)
        failpoint(Failpoint.RUNWAY_PUBLISHED)
    return len(chunks)


def publish(app: Celery, chunks: Sequence[QueuedChunk]) -> None:
    """Send the message of each chunk. One that cannot be sent is sent again by the sweeper."""
    send(
        app,
        [
            Message(
                CHUNK_TASK,
                args=(chunk.job_id, chunk.seq, chunk.requests, chunk.tokens),
                queue=chunk.queue,
                shown=f"job {chunk.job_id}, chunk {chunk.seq}, requests {chunk.requests}, "
                f"tokens {chunk.tokens}, lane {chunk.queue}",
            )
            for chunk in chunks
        ],
    )


def _take_pending(database: Database, model: str, runway_chunks: int) -> list[QueuedChunk]:
    with database.read() as session:
        # Filled in strides: one transaction for half a runway, not one for each finished chunk.
        if session.execute(_count_queued(model)).scalar_one() > runway_chunks // 2:
            return []
    taken: list[QueuedChunk] = []
    with database.write() as session:
        room = runway_chunks - session.execute(_count_queued(model)).scalar_one()
        waiting = [
            WaitingJob(row.id, Lane(row.lane), row.created_ms, row.pending)
            for row in session.execute(
                select(Job.id, Job.lane, Job.created_ms, func.count().label("pending"))
                .join(Chunk, and_(Chunk.job_id == Job.id, Chunk.state == ChunkState.PENDING))
                .where(Job.model == model, Job.status == JobStatus.IN_PROGRESS)
                .group_by(Job.id, Job.lane, Job.created_ms)
            )
        ]
        lanes = {job.job_id: job.lane for job in waiting}
        for job_id, count in choose_next(waiting, room):
            seqs = session.scalars(
                select(Chunk.seq)
                .where(Chunk.job_id == job_id, Chunk.state == ChunkState.PENDING)
                .order_by(Chunk.seq)
                .limit(count)
                .with_for_update(skip_locked=True)
            ).all()
            rows = session.execute(
                update(Chunk)
                .where(Chunk.job_id == job_id, Chunk.seq.in_(seqs))
                .values(state=ChunkState.QUEUED, queued_ms=now_ms())
                .returning(Chunk.seq, Chunk.requests, Chunk.estimated_tokens)
            )
            queue = queue_name(model, lanes[job_id])
            taken += sorted(
                (QueuedChunk(job_id, row.seq, row.requests, row.estimated_tokens, queue) for row in rows),
                key=lambda chunk: chunk.seq,
            )
    return taken


def _count_queued(model: str) -> Select[int]:
    return (
        select(func.count())
        .select_from(Chunk)
        .join(Job, Job.id == Chunk.job_id)
        .where(Chunk.state == ChunkState.QUEUED, Job.model == model, Job.status == JobStatus.IN_PROGRESS)
    )


def republish_missing(app: Celery, database: Database) -> int:
    """Send again the messages of queued chunks that the broker has lost; returns how many.

    A message is taken for lost when its queue is shorter than the number of chunks that should be on it.
    Sending one too many is harmless: whoever comes second finds the lease taken.
    """
    if broker_is_away(app):
        return 0
    with database.read() as session:
        rows = session.execute(
            select(Chunk.job_id, Chunk.seq, Chunk.requests, Chunk.estimated_tokens, Job.model, Job.lane)
            .join(Job, Job.id == Chunk.job_id)
            .where(
                Chunk.state == ChunkState.QUEUED,
                Job.status == JobStatus.IN_PROGRESS,
                Chunk.queued_ms < now_ms() - REPUBLISH_AFTER_MS,
            )
            .order_by(Chunk.queued_ms, Chunk.seq)
        ).all()
    by_queue: dict[str, list[QueuedChunk]] = {}
    for row in rows:
        queue = queue_name(row.model, Lane(row.lane))
        chunk = QueuedChunk(row.job_id, row.seq, row.requests, row.estimated_tokens, queue)
        by_queue.setdefault(queue, []).append(chunk)
    lost = [
        chunk
        for queue, chunks in by_queue.items()
        for chunk in chunks[: max(0, len(chunks) - waiting_messages(app, queue))]
    ]
    if not lost:
        return 0
    with database.write() as session:
        session.execute(
            update(Chunk)
            .where(
                tuple_(Chunk.job_id, Chunk.seq).in_([(chunk.job_id, chunk.seq) for chunk in lost]),
                Chunk.state == ChunkState.QUEUED,
            )
            .values(queued_ms=now_ms())
        )
    log.warning("messages_lost", chunks=len(lost))
    publish(app, lost)
    return len(lost)
