"""The event loop on a thread of its own that an engine lives in."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from config.catalogue import EngineKind, ModelEntry
from workers.engine import Engine, EngineCapacity

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
    """Runs an engine's coroutines for callers on other threads."""

    def __init__(self, engine: Engine, entry: ModelEntry) -> None:
        self.engine = engine
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
