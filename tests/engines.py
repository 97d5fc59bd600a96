"""A worker to watch: the simulated engine with a gate that requests wait at, and a runner on it."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from config.catalogue import EngineKind, ModelEntry, Simulation
from tasks.backends import Backends
from tasks.chunks import Recorded
from tests.samples import chunks_of, put_on_runway
from workers.chunk_runner import ChunkRunner
from workers.engine import EngineAnswer, EngineCapacity, EngineRequest
from workers.engine_host import EngineHost
from workers.room import Room
from workers.simulated_engine import SimulatedEngine


class WatchedEngine(SimulatedEngine):
    """Remembers what enters it; while its gate is closed nothing is answered."""

    def __init__(self, entry: ModelEntry) -> None:
        super().__init__("sim", entry)
        self.entered: list[str] = []
        """Ids of the requests, as they came."""
        self.inside = 0
        self.most_inside = 0
        self.aborted = 0
        self.fault: Exception | None = None
        """Raised instead of an answer."""
        self._gate = asyncio.Event()
        self._gate.set()

    async def run(self, request: EngineRequest) -> EngineAnswer:
        """Wait at the gate, then answer."""
        self.entered.append(request.id)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            await asyncio.sleep(0)  # so that those who come together meet
            await self._gate.wait()
            if self.fault is not None:
                raise self.fault
            return await super().run(request)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.inside -= 1

    async def close_gate(self) -> None:
        """From now on requests wait."""
        self._gate.clear()

    async def open_gate(self) -> None:
        """All that wait go on."""
        self._gate.set()


class WatchedHost(EngineHost):
    """A started host of a watched engine."""

    engine: WatchedEngine

    def __init__(self) -> None:
        entry = ModelEntry(source="sim", engine=EngineKind.SIMULATED, simulation=Simulation(output_tokens=7))
        super().__init__(WatchedEngine(entry), entry)
        self.capacity: EngineCapacity = self.start()

    def close_gate(self) -> None:
        """From now on requests wait inside the engine."""
        self.submit(self.engine.close_gate()).result()

    def revive(self) -> None:
        """Restart the engine after a death."""
        self.restart()

    def open_gate(self) -> None:
        """Let them go on."""
        self.submit(self.engine.open_gate()).result()


class Worker:
    """A runner, the room it counts in and a thread to run chunks on."""

    def __init__(
        self, backends: Backends, host: WatchedHost, in_flight: int, pool: ThreadPoolExecutor
    ) -> None:
        self.backends = backends
        self.runner = ChunkRunner(backends, host, in_flight, "worker-1")
        self.room = Room(host.capacity)
        self._pool = pool

    def run(self, job_id: str, seq: int = 0) -> Recorded | None:
        """Run a chunk on this thread."""
        put_on_runway(self.backends, job_id)
        chunk = chunks_of(self.backends, job_id)[seq]
        holding = self.room.take(chunk.requests, chunk.estimated_tokens)
        try:
            return self.runner.run(job_id, seq, holding)
        finally:
            holding.give_back_all()

    def start(self, job_id: str, seq: int = 0) -> "Future[Recorded | None]":
        """Run a chunk on a thread of its own."""
        return self._pool.submit(self.run, job_id, seq)


@contextmanager
def worker_of(backends: Backends, host: WatchedHost, in_flight: int = 256) -> Iterator[Worker]:
    with ThreadPoolExecutor(4) as pool:
        try:
            yield Worker(backends, host, in_flight, pool)
        finally:
            host.open_gate()
