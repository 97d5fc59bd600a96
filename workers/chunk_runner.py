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
from tasks.backoff import backoff_s, jittered
from tasks.chunks import (
    Lease,
    Recorded,
    lease_chunk,
    record_results,
    release_chunk,
    start_alone,
    unfinished_requests,
)
from tasks.errors import LeaseLost
from tasks.failpoints import Failpoint, failpoint
from tasks.faults import DATABASE_AWAY, StorageFailed
from tasks.jobs import fail_for_lost_plan
from tasks.outcomes import Outcome
from tasks.planned_file import PlannedRequest
from tasks.storage import StoredObjectMissing
from tasks.tables import JobStatus
from workers.engine import EngineDead, EngineRequest, EngineUnavailable
from workers.engine_host import EngineHost
from workers.isolation import MOST_STARTS_ALONE, Seats, attempts_after_verdict, groups_to_run
from workers.room import Holding

log = structlog.get_logger()

MISSING_PAUSE_S = 5.0
"""How long a chunk is kept back whose requests are not in storage."""

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0
"""Between two attempts to record results in a database that is away."""


@dataclass(frozen=True)
class _AllIn:
    """The last message of a feed: nothing more comes, because of `error` if there is one."""

    error: BaseException | None


@dataclass(frozen=True)
class _Checkpoint:
    """What came before must be recorded before the feed goes on."""

    alone: PlannedRequest | None
    """The request that is next, if it runs by itself."""
    may_run: Future[bool]


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
        self.results = 0
        """Recorded so far: the sign that the engine gets something done."""
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
            EngineUnavailable: the engine cannot answer now; the chunk was given back.
            StorageFailed: its requests cannot be read now; the chunk was given back.
            SQLAlchemyError: the database is away; the sweeper takes the chunk back.
        """
        database = self._backends.database
        lease = lease_chunk(database, job_id, seq, self._worker_id, self._settings.lease_s)
        if lease is None:
            return None
        chunk_log = log.bind(job=job_id, chunk=seq, attempt=lease.attempt, worker=self._worker_id)
        try:
            failpoint(Failpoint.CHUNK_LEASED)
            return self._run_leased(lease, unfinished_requests(self._backends, lease), holding)
        except LeaseLost:
            chunk_log.warning("lease_lost")
            return None
        except StoredObjectMissing:
            chunk_log.error("plan_missing")
            if lease.attempt >= self._settings.max_attempts:
                fail_for_lost_plan(database, job_id)
            else:
                # Another try at once would fail too.
                self.stopping.wait(min(MISSING_PAUSE_S, self._settings.lease_s / 2))
                release_chunk(database, lease, attempts=lease.attempt)
            return None
        except (EngineUnavailable, StorageFailed) as error:
            # Nobody's fault here.
            chunk_log.warning("chunk_given_back", error=str(error))
            release_chunk(database, lease, attempts=lease.attempt - 1)
            raise
        except DATABASE_AWAY:
            # Nothing can be given back to a database that is away.
            raise
        except Exception as error:
            chunk_log.warning("chunk_failed", error=repr(error))
            release_chunk(database, lease, attempts=lease.attempt)
            raise

    def _run_leased(self, lease: Lease, requests: list[PlannedRequest], holding: Holding) -> Recorded | None:
        finished: Finished = queue.SimpleQueue()
        feed = self._host.submit(self._feed(lease, requests, finished, holding))
        feed.add_done_callback(
            lambda done: finished.put(_AllIn(CancelledError() if done.cancelled() else done.exception()))
        )
        left = len(requests)
        alone: PlannedRequest | None = None
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
                    alone = end.alone
                    may_run = alone is None or self._may_run_alone(lease, alone)
                    if alone is not None and not may_run:
                        recorded = self._convict(lease, alone, finish=False)
                        left -= 1
                    end.may_run.set_result(may_run)
                if recorded.job_status is not JobStatus.IN_PROGRESS or time.monotonic() > self._cut_off_at:
                    feed.cancel()
        except BaseException:
            feed.cancel()
            raise
        if left == 0:
            return recorded
        if (error := _fault_of(end)) is not None:
            if isinstance(error, EngineDead) and alone is not None:
                self._convict(lease, alone, finish=left == 1)
                attempts = attempts_after_verdict(self._settings.max_attempts)
                release_chunk(self._backends.database, lease, attempts=attempts)
            raise error
        # Cut off by a cancelled job, a dead engine or this worker's shutdown: none is the chunk's fault.
        failpoint(Failpoint.RELEASING)
        release_chunk(self._backends.database, lease, attempts=lease.attempt - 1)
        return None

    def _may_run_alone(self, lease: Lease, request: PlannedRequest) -> bool:
        return start_alone(self._backends.database, lease, request.index) <= MOST_STARTS_ALONE

    def _convict(self, lease: Lease, request: PlannedRequest, *, finish: bool) -> Recorded:
        """Fail the request that takes the engine with it."""
        log.error("request_kills_engine", job=lease.job_id, chunk=lease.seq, index=request.index)
        verdict = Outcome(request.index, request.custom_id, None, None, "engine_crash")
        return self._record(lease, [verdict], finish=finish)

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
        """Record, and wait for a database that is away: what the engine has answered is not thrown away."""
        failures = 0
        while True:
            try:
                recorded = record_results(
                    self._backends.database,
                    lease,
                    outcomes,
                    worker=self._worker_id,
                    lease_s=self._settings.lease_s,
                    finish=finish,
                )
                break
            except DATABASE_AWAY as error:
                if time.monotonic() > self._cut_off_at:
                    raise
                failures += 1
                wait_s = jittered(backoff_s(failures, FIRST_WAIT_S, LONGEST_WAIT_S))
                log.warning("record_put_off", job=lease.job_id, chunk=lease.seq, error=type(error).__name__)
                time.sleep(wait_s)
        if outcomes:
            self.results += len(outcomes)
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
                    if self._must_stop():
                        self._seats.give_back()
                        return
                    running.create_task(run_one(request)).add_done_callback(free_seat)
            return
        for group in suspects:
            async with self._seats.all_taken():
                if self._must_stop():
                    return
                checkpoint = _Checkpoint(group[0] if len(group) == 1 else None, Future())
                finished.put(checkpoint)
                if not await asyncio.wrap_future(checkpoint.may_run):
                    continue
                async with asyncio.TaskGroup() as running:
                    for request in group:
                        running.create_task(run_one(request))

    def _must_stop(self) -> bool:
        """Whether nothing more may enter the engine."""
        return self.stopping.is_set() or self._host.is_dead

    async def _answer(self, lease: Lease, request: PlannedRequest, priority: int) -> Outcome:
        started = time.monotonic()
        answer = await self._host.run(
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


def _fault_of(end: _AllIn) -> BaseException | None:
    """Why a feed ended before its requests did; null when it was cut off."""
    if isinstance(end.error, CancelledError):
        return None
    if isinstance(end.error, BaseExceptionGroup):
        # Of several, the one that explains the others.
        return min(end.error.exceptions, key=lambda error: not isinstance(error, EngineDead))
    return end.error
