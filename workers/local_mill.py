"""All processes that one machine needs for a job, started and stopped in the right order."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from config.settings import Settings
from workers.child import Child
from workers.data_folder import DataFolder
from workers.embedded_redis import EmbeddedRedis
from workers.engine import EXIT_ENGINE_DID_NOT_START

SYSTEM_GRACE_S = 5.0
STOP_MARGIN_S = 15.0
"""Time an engine worker gets beyond its drain to close its engine."""

MOST_RESTARTS = 4
"""Deaths of the engine worker without any progress in between, after which a run gives up."""

FIRST_BACKOFF_S = 1.0


HOPELESS = frozenset({2, EXIT_ENGINE_DID_NOT_START})
"""Exit statuses of a worker that would end the same way again: wrong settings, an engine that won't start."""


class EngineKeepsFailing(Exception):
    """The engine worker died again and again, or cannot start; the message is the end of its log."""


class LocalMill:
    """Redis if none is set, a system worker, and one engine worker when a model is known."""

    def __init__(
        self, settings: Settings, folder: DataFolder, environment: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._say = say
        self._folder = folder
        self._environment = environment
        self._redis: EmbeddedRedis | None = None
        self._system: Child | None = None
        self._engine: Child | None = None
        self._deaths = 0
        self._done_at_death = -1
        self._restart_at = 0.0

    def __enter__(self) -> Self:
        try:
            if self._settings.redis_url is None:
                self._redis = EmbeddedRedis(self._folder.path / "redis")
                self._redis.start(self._folder.logs / "redis.log")
                self._environment["GRISTMILL_REDIS_URL"] = self._redis.url
            self._system = self._child("system", "system")
            self._system.start()
        except BaseException:
            self.stop(drain=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=True)

    @property
    def settings(self) -> Settings:
        """The settings with the broker that the children use."""
        if self._redis is None:
            return self._settings
        return self._settings.model_copy(update={"redis_url": SecretStr(self._redis.url)})

    @property
    def engine_log(self) -> Path:
        """The engine worker's log."""
        return self._folder.logs / "engine.log"

    def start_engine(self, model: str) -> None:
        """Start the engine worker of a model."""
        self._engine = self._child("engine", "worker", model)
        self._engine.start()

    def keep_running(self, done: int) -> None:
        """Start again what has died; `done` is the number of results so far, the sign of progress.

        Raises:
            EngineKeepsFailing: the engine worker dies without getting anything done.
        """
        assert self._system is not None
        if not self._system.is_running:
            self._say(f"The system worker ended with status {self._system.exit_status}; starting another.")
            self._system.start()
        if self._redis is not None and not self._redis.is_running:
            self._say("The embedded Redis server is gone; starting it again.")
            self._redis.start(self._folder.logs / "redis.log")
        engine = self._engine
        if engine is None or engine.is_running:
            return
        if self._restart_at == 0.0:
            self._deaths = 1 if done > self._done_at_death else self._deaths + 1
            self._done_at_death = done
            if self._deaths > MOST_RESTARTS or engine.exit_status in HOPELESS:
                raise EngineKeepsFailing(engine.last_lines(15))
            backoff_s = FIRST_BACKOFF_S * 2 ** (self._deaths - 1)
            self._say(
                f"The engine worker ended with status {engine.exit_status}; starting another in "
                f"{backoff_s:.0f} s. What it had in its engine runs again."
            )
            self._restart_at = time.monotonic() + backoff_s
        elif time.monotonic() >= self._restart_at:
            self._restart_at = 0.0
            engine.stop(grace_s=0)
            engine.start()

    def stop(self, *, drain: bool) -> None:
        """Stop everything: the engine first, so that it can record what it finishes.

        Ctrl-C while it drains ends the wait.
        """
        try:
            if self._engine is not None and drain:
                self._engine.stop(self._settings.drain_s + STOP_MARGIN_S)
        finally:
            for child in (self._engine, self._system):
                if child is not None:
                    child.stop(SYSTEM_GRACE_S if child is self._system else 0.0)
            if self._redis is not None:
                self._redis.stop()

    def _child(self, name: str, *arguments: str) -> Child:
        command = [sys.executable, "-m", "gristmill", *arguments]
        return Child(name, command, self._folder.logs / f"{name}.log", self._environment)
