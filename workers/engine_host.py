"""The event loop on a thread of its own that an engine lives in."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from config.catalogue import EngineKind, ModelEntry
from workers.engine import Engine, EngineAnswer, EngineCapacity, EngineDead, EngineRequest

T = TypeVar("T")

CLOSE_TIMEOUT_S = 30.0


def make_engine(name: str, entry: ModelEntry, models_folder: str, devices: str | None = None) -> Engine:
    """The engine that a catalogue entry asks for, not started. Imports nothing the others need."""
    if entry.engine is EngineKind.VLLM:
        from workers.vllm_engine import VllmEngine

        return VllmEngine(name, entry, models_folder, devices)
    if entry.engine is EngineKind.OPENAI:
        from workers.openai_engine import OpenAIEngine

        return OpenAIEngine(name, entry)
    from workers.simulated_engine import SimulatedEngine

    return SimulatedEngine(name, entry)


class EngineHost:
    """Runs an engine's coroutines for callers on other threads, and starts it again when it died."""

    def __init__(self, engine: Engine, entry: ModelEntry) -> None:
        self.engine = engine
        self.is_dead = False
        """Since a request found the engine gone, until it is started again."""
        self._entry = entry
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)

    def start(self) -> EngineCapacity:
        """Start the engine; its capacity, within the catalogue's limits.

        Raises:
            EngineStartFailed: with the engine's own message.
        """
        self._thread.start()
        capacity = self.submit(self.engine.start()).result()
        return EngineCapacity(
            self._entry.max_in_flight or capacity.requests,
            self._entry.max_tokens_in_flight or capacity.tokens,
        )

    async def run(self, request: EngineRequest) -> EngineAnswer:
        """Answer one request; to be awaited on the engine's loop.

        Raises:
            EngineDead: the engine is gone.
            EngineUnavailable: the engine cannot answer now.
        """
        if self.is_dead:
            raise EngineDead("the engine is gone")
        try:
            return await self.engine.run(request)
        except EngineDead:
            self.is_dead = True
            raise

    def restart(self) -> None:
        """Put a new engine in the place of the dead one, in this process.

        Raises:
            EngineStartFailed: with the engine's own message; it is as dead as before.
        """
        self.submit(self.engine.close()).result(CLOSE_TIMEOUT_S)
        self.submit(self.engine.start()).result()
        self.is_dead = False

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the engine's loop; cancelling the future cancels it there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Stop the engine, then the loop."""
        try:
            self.submit(self.engine.close()).result(CLOSE_TIMEOUT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_TIMEOUT_S)
            self._loop.close()
