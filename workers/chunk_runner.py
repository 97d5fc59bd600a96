"""Runs chunks: leases one, sends its requests through the engine, records results as they finish."""

import asyncio
import queue
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from threading import Event

import structlog

from tasks.backends import Backends
from tasks.chunks import (
    Lease,
    Recorded,
    lease_chunk,
    record_results,
    release_chunk,
    unfinished_requests,
)
from tasks.errors import LeaseLost
from tasks.failpoints import Failpoint, failpoint
from tasks.jobs import fail_for_lost_plan
from tasks.outcomes import Outcome
from tasks.planned_file import PlannedRequest
from tasks.storage import StoredObjectMissing
from tasks.tables import JobStatus
from workers.engine import EngineDead, EngineRequest, EngineUnavailable
from workers.engine_host import EngineHost
from workers.isolation import Seats, attempts_after_verdict, groups_to_run
from workers.room import Holding

log = structlog.get_logger()

UNAVAILABLE_PAUSE_S = 5.0
"""How long a chunk is kept back when the engine cannot take it now."""


@dataclass(frozen=True)
class _AllIn:
    """The last message of a feed: nothing more comes, because of `error` if there is one."""

    error: BaseException | None


@dataclass(frozen=True)
class _Checkpoint:
    """What came before must be recorded before the feed goes on."""

    passed: Future[None]


Finished = queue.SimpleQueue[Outcome | _AllIn | _Checkpoint]
"""From the engine's loop to the chunk's thread."""


class ChunkRunner:
    """Runs one chunk for each thread that calls it; the requests of all of them meet in one engine."""

    def __init__(self, backends: Backends, host: EngineHost, in_flight: int, worker_id: str) -> None:
        self._backends = backends
        self._settings = backends.settings
        self._host = host
        self._seats = Seats(in_flight)
        self._worker_id = worker_id
        self.stopping = Event()
        """Set when the worker shuts down: nothing new enters the engine."""
        self._cut_off_at = float("inf")

    def stop(self) -> None:
        """Let what is in the engine finish, for at most `drain_s`; give back the rest."""
        self._cut_off_at = time.monotonic() + self._settings.drain_s
        self.stopping.set()

    def cut_off(self) -> None:
        """Give back everything at once."""
        self._cut_off_at = 0.0
        self.stopping.set()

    def run(self, job_id: str, seq: int, holding: Holding) -> Recorded | None:
        """Run a chunk to its end; null when there was nothing to do or the chunk went elsewhere.

        Raises:
            EngineDead: the engine is gone; the chunk was given back.
        """
        lease = lease_chunk(self._backends.database, job_id, seq, self._worker_id, self._settings.lease_s)
        if lease is None:
            return None
        chunk_log = log.bind(job=job_id, chunk=seq, attempt=lease.attempt, worker=self._worker_id)
        try:
            failpoint(Failpoint.CHUNK_LEASED)
            requests = unfinished_requests(self._backends, lease)
            if lease.attempt > self._settings.max_attempts:
                return self._convict(lease, requests)
            return self._run_leased(lease, requests, holding)
        except LeaseLost:
            chunk_log.warning("lease_lost")
            return None
        except StoredObjectMissing:
            chunk_log.error("plan_missing")
            if lease.attempt >= self._settings.max_attempts:
                fail_for_lost_plan(self._backends.database, job_id)
            else:
                self._pause()
                release_chunk(self._backends.database, lease, attempts=lease.attempt)
            return None
        except EngineUnavailable as error:
            # Nobody's fault here, and another try at once would fail too.
            chunk_log.warning("engine_unavailable", error=str(error))
            self._pause()
            release_chunk(self._backends.database, lease, attempts=lease.attempt - 1)
            return None
        except EngineDead:
            release_chunk(self._backends.database, lease, attempts=lease.attempt)
            raise

    def _convict(self, lease: Lease, requests: Sequence[PlannedRequest]) -> Recorded | None:
        """Fail the request under which the engine died last; the others run again."""
        log.error("request_kills_engine", job=lease.job_id, chunk=lease.seq, index=requests[0].index)
        verdict = Outcome(requests[0].index, requests[0].custom_id, None, None, "engine_crash")
        recorded = self._record(lease, [verdict], finish=len(requests) == 1)
        if len(requests) == 1:
            return recorded
        attempts = attempts_after_verdict(self._settings.max_attempts)
        release_chunk(self._backends.database, lease, attempts=attempts)
        return None

    def _pause(self) -> None:
        """Wait a little with what would fail again at once, but not past the lease."""
        self.stopping.wait(min(UNAVAILABLE_PAUSE_S, self._settings.lease_s / 2))

    def _run_leased(self, lease: Lease, requests: list[PlannedRequest], holding: Holding) -> Recorded | None:
        finished: Finished = queue.SimpleQueue()
        feed = self._host.submit(self._feed(lease, requests, finished, holding))
        feed.add_done_callback(
            lambda done: finished.put(_AllIn(CancelledError() if done.cancelled() else done.exception()))
        )
        left = len(requests)
        try:
            while True:
                outcomes, end = self._collect(finished)
                left -= len(outcomes)
                all_in = isinstance(end, _AllIn)
                # The lease of a chunk that goes back is ended by the release, not by this write.
                recorded = self._record(lease, outcomes, finish=all_in and left == 0)
                if isinstance(end, _AllIn):
                    break
                if end is not None:
                    end.passed.set_result(None)
                if recorded.job_status is not JobStatus.IN_PROGRESS or time.monotonic() > self._cut_off_at:
                    feed.cancel()
        except BaseException:
            feed.cancel()
            raise
        if left == 0:
            return recorded
        if isinstance(end.error, BaseExceptionGroup):
            raise end.error.exceptions[0]
        if end.error is not None and not isinstance(end.error, CancelledError):
            raise end.error
        # Cut off by a cancelled job or by this worker's shutdown: neither is the chunk's fault.
        failpoint(Failpoint.RELEASING)
        release_chunk(self._backends.database, lease, attempts=lease.attempt - 1)
        return None

    def _collect(self, finished: Finished) -> tuple[list[Outcome], _AllIn | _Checkpoint | None]:
        """What finishes within one flush period, and what ended the period early if something did."""
        outcomes: list[Outcome] = []
        flush_at = time.monotonic() + self._settings.flush_s
        while True:
            try:
                item = finished.get(timeout=max(0.0, flush_at - time.monotonic()))
            except queue.Empty:
                return outcomes, None
            if not isinstance(item, Outcome):
                return outcomes, item
            outcomes.append(item)

    def _record(self, lease: Lease, outcomes: Sequence[Outcome], *, finish: bool) -> Recorded:
        recorded = record_results(
            self._backends.database,
            lease,
            outcomes,
            worker=self._worker_id,
            lease_s=self._settings.lease_s,
            finish=finish,
        )
        if outcomes:
            failpoint(Failpoint.CHUNK_FINISHED if finish else Failpoint.RESULTS_WRITTEN)
        return recorded

    async def _feed(
        self, lease: Lease, requests: Sequence[PlannedRequest], finished: Finished, holding: Holding
    ) -> None:
        """Send requests into the engine; each outcome is handed over when it is there."""

        priority = lease.lane.rank

        async def run_one(request: PlannedRequest) -> None:
            finished.put(await self._answer(lease, request, priority))

        # A callback, because a task that is cancelled before its first step never enters a `finally`.
        def free_seat(_: asyncio.Task[None]) -> None:
            self._seats.give_back()
            holding.give_back(1)

        suspects = groups_to_run(requests, lease.attempt, self._settings.max_attempts)
        if suspects is None:
            async with asyncio.TaskGroup() as running:
                for request in requests:
                    await self._seats.take()
                    if self.stopping.is_set():
                        self._seats.give_back()
                        return
                    running.create_task(run_one(request)).add_done_callback(free_seat)
            return
        for group in suspects:
            async with self._seats.all_taken():
                if self.stopping.is_set():
                    return
                async with asyncio.TaskGroup() as running:
                    for request in group:
                        running.create_task(run_one(request))
                checkpoint = _Checkpoint(Future())
                finished.put(checkpoint)
                await asyncio.wrap_future(checkpoint.passed)

    async def _answer(self, lease: Lease, request: PlannedRequest, priority: int) -> Outcome:
        started = time.monotonic()
        answer = await self._host.engine.run(
            EngineRequest(
                id=f"{lease.job_id}-{request.index}-{lease.token}",
                endpoint=lease.endpoint,
                body=request.body,
                priority=priority,
            )
        )
        return Outcome(
            index=request.index,
            custom_id=request.custom_id,
            status_code=answer.status_code,
            body=answer.body,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cached_tokens=answer.cached_tokens,
            reasoning_tokens=answer.reasoning_tokens,
            duration_ms=int((time.monotonic() - started) * 1000),
        )
