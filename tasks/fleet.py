"""The fleet as it is now: live workers, and how much waits in which lane."""

from dataclasses import dataclass

from sqlalchemy import func, select

from tasks.clock import now_ms
from tasks.database import Database
from tasks.tables import Chunk, ChunkState, Job, JobStatus, Lane, Worker

LIVE_MS = 6_000
"""A worker that missed three heartbeats is taken for gone."""


@dataclass(frozen=True)
class LaneDepth:
    """Requests of one model's lane by where they are."""

    model: str
    lane: Lane
    pending: int
    """In the database only."""
    queued: int
    """On the runway."""
    leased: int
    """In chunks that workers hold."""


def live_workers(database: Database, model: str | None = None) -> list[Worker]:
    """Workers with a recent heartbeat, the longest-running first."""
    query = select(Worker).where(Worker.heartbeat_ms > now_ms() - LIVE_MS)
    if model is not None:
        query = query.where(Worker.model == model)
    with database.read() as session:
        return list(session.scalars(query.order_by(Worker.started_ms, Worker.id)))


def lane_depths(database: Database) -> list[LaneDepth]:
    """Unfinished work by model and lane, the most urgent lane of each model first."""
    with database.read() as session:
        rows = session.execute(
            select(Job.model, Job.lane, Chunk.state, func.sum(Chunk.requests))
            .join(Chunk, Chunk.job_id == Job.id)
            .where(
                Job.status == JobStatus.IN_PROGRESS,
                Job.model.is_not(None),
                Chunk.state.in_([ChunkState.PENDING, ChunkState.QUEUED, ChunkState.LEASED]),
            )
            .group_by(Job.model, Job.lane, Chunk.state)
        ).all()
    counts: dict[tuple[str, Lane], dict[str, int]] = {}
    for model, lane, state, requests in rows:
        assert model is not None
        counts.setdefault((model, Lane(lane)), {})[state] = int(requests)
    return [
        LaneDepth(
            model,
            lane,
            pending=states.get(ChunkState.PENDING, 0),
            queued=states.get(ChunkState.QUEUED, 0),
            leased=states.get(ChunkState.LEASED, 0),
        )
        for (model, lane), states in sorted(counts.items(), key=lambda item: (item[0][0], item[0][1].rank))
    ]
