"""All processes of one machine, started, watched and stopped in the right order."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from config.settings import Settings
from tasks.errors import UserError
from workers.child import Child
from workers.data_folder import DataFolder
from workers.embedded_redis import EmbeddedRedis, RedisMissing
from workers.engine import EXIT_ENGINE_DID_NOT_START
from workers.part import Part

SYSTEM_GRACE_S = 5.0
WEB_GRACE_S = 12.0
STOP_MARGIN_S = 15.0
"""Time an engine worker gets beyond its drain to close its engine."""

MOST_RESTARTS = 4
"""Deaths of the engine worker without any progress in between, after which a run gives up."""

HOPELESS = frozenset({2, EXIT_ENGINE_DID_NOT_START})
"""Exit statuses of a worker that would end the same way again: wrong settings, an engine that won't start."""


class EngineKeepsFailing(Exception):
    """The engine worker died again and again, or cannot start; the message is the end of its log."""


class LocalMill:
    """Redis if none is set, and a system worker; an engine worker, web server and Flower on demand.

    Entering raises UserError when the embedded Redis does not start.
    """

    def __init__(
        self, settings: Settings, folder: DataFolder, environment: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._say = say
        self._folder = folder
        self._environment = environment
        self._redis: EmbeddedRedis | None = None
        self._done = -1
        self._idle_deaths = 0
        self.parts: dict[str, Part] = {}
        """By a short name, in the order in which they were started."""

    def __enter__(self) -> Self:
        try:
            if self._settings.redis_url is None:
                self._start_redis()
            self._start("system", "system worker", "system")
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
        self._start("engine", "engine worker", "worker", model, hopeless=HOPELESS)

    def start_web(self) -> None:
        """Start the web server."""
        self._start("web", "web server", "web")

    def start_flower(self) -> None:
        """Start Flower."""
        self._start("flower", "Flower server", "flower")

    def keep_running(self, done: int) -> None:
        """Start again what has died; `done` is the number of results so far, the sign of progress.

        Raises:
            EngineKeepsFailing: the engine worker dies without getting anything done.
        """
        engine = self.parts.get("engine")
        if engine is not None:
            if done > self._done:
                self._done = done
                self._idle_deaths = 0
                engine.forgive()
            if engine.died:
                # Not the part's own count: that forgives an engine which loads for minutes, then dies.
                self._idle_deaths += 1
                if engine.is_hopeless or self._idle_deaths > MOST_RESTARTS:
                    raise EngineKeepsFailing(engine.child().last_lines(15))
        self.tend()

    def tend(self) -> None:
        """Start again what has died, when its time has come, and say so."""
        for part in self.parts.values():
            if message := part.tend(time.monotonic()):
                self._say(message)

    def stop(self, *, drain: bool) -> None:
        """Stop everything: the ways in first, then the engine, so that it can record what it finishes.

        Ctrl-C while it drains ends the wait.
        """
        try:
            if drain:
                self._stop_gently()
        finally:
            for name, part in self.parts.items():
                if name != "redis":
                    part.child().stop(SYSTEM_GRACE_S if name == "system" and drain else 0.0)
            if self._redis is not None:
                self._redis.stop()

    def _stop_gently(self) -> None:
        graces = {
            "web": WEB_GRACE_S,
            "flower": SYSTEM_GRACE_S,
            "engine": self._settings.drain_s + STOP_MARGIN_S,
        }
        stopping = [(self.parts[name], grace_s) for name, grace_s in graces.items() if name in self.parts]
        for part, _ in stopping:
            part.child().ask_to_stop()
        for part, grace_s in stopping:
            part.child().stop(grace_s)

    def _start_redis(self) -> None:
        self._redis = redis = EmbeddedRedis(self._folder.path / "redis")

        def child() -> Child:
            assert redis.child is not None
            return redis.child

        part = Part("embedded Redis server", child, lambda: redis.start(self._folder.logs / "redis.log"))
        try:
            part.start(time.monotonic())
        except (RedisMissing, TimeoutError) as error:
            raise UserError(str(error), code="redis_not_started") from error
        self.parts["redis"] = part
        self._environment["GRISTMILL_REDIS_URL"] = redis.url

    def _start(self, key: str, name: str, *arguments: str, hopeless: frozenset[int] = frozenset()) -> None:
        command = [sys.executable, "-m", "gristmill", *arguments]
        child = Child(key, command, self._folder.logs / f"{key}.log", self._environment)
        self.parts[key] = part = Part(name, lambda: child, child.start, hopeless)
        part.start(time.monotonic())
