"""The fleet: who is alive, and how many requests wait where."""

from tasks.backends import Backends
from tasks.fleet import LIVE_MS, LaneDepth, lane_depths, live_workers
from tasks.jobs import cancel_job
from tasks.tables import JobStatus, Lane
from tests.samples import alive, change_chunks, change_job, chunks_of, leased, put_on_runway, started_job


def test_a_worker_that_fell_silent_is_not_live(backends: Backends) -> None:
    alive(backends, "young", 0, started_ms=2)
    alive(backends, "old", LIVE_MS - 3_000, started_ms=1)
    alive(backends, "gone", LIVE_MS + 1)
    alive(backends, "elsewhere", 0, model="other", started_ms=3)
    assert [worker.id for worker in live_workers(backends.database)] == ["old", "young", "elsewhere"]
    assert [worker.id for worker in live_workers(backends.database, "other")] == ["elsewhere"]
    assert live_workers(backends.database, "none") == []


def test_requests_are_counted_by_lane_and_by_where_they_are(backends: Backends) -> None:
    assert lane_depths(backends.database) == []
    bulk = started_job(backends, 7, per_chunk=2, model="sim", lane=Lane.BULK)
    leased(backends, bulk, seq=0)
    started_job(backends, 3, model="sim", lane=Lane.URGENT)
    started_job(backends, 2, model="sim", lane=Lane.URGENT)
    put_on_runway(backends, started_job(backends, 4, model="other"))
    # Neither what is done, nor what no longer runs.
    change_chunks(backends, started_job(backends, 5, model="sim"), state="done")
    cancel_job(backends.database, started_job(backends, 5, model="sim"))
    change_job(backends, started_job(backends, 5, model="sim"), status=JobStatus.FINALIZING)
    assert lane_depths(backends.database) == [
        LaneDepth("other", Lane.NORMAL, pending=0, queued=4, leased=0),
        LaneDepth("sim", Lane.URGENT, pending=5, queued=0, leased=0),
        LaneDepth("sim", Lane.BULK, pending=0, queued=5, leased=2),
    ]
    assert sum(chunk.requests for chunk in chunks_of(backends, bulk)) == 7
