"""An engine that died is started again in its place, as long as that helps."""

import threading
from collections.abc import Callable

import structlog

from tasks.backoff import backoff_s, jittered
from workers.engine import EngineStartFailed
from workers.engine_host import EngineHost
from workers.room import Room

log = structlog.get_logger()

MOST_DEATHS = 4
"""Deaths in a row, without a result in between, after which a fresh process is the better cure."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0


class EngineCare:
    """Restarts one engine. Thread-safe: of all that find it dead one restarts it, and the others wait."""

    def __init__(
        self, host: EngineHost, room: Room, stopping: threading.Event, results: Callable[[], int]
    ) -> None:
        self._host = host
        self._room = room
        self._stopping = stopping
        self._results = results
        self._results_before = 0
        self._deaths = 0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when nobody is restarting the engine."""
        with self._lock:
            pass

    def bring_back(self) -> bool:
        """Restart the engine if it is dead; false when the process should end instead.

        While it is dead the worker takes no chunks.
        """
        with self._lock, self._room.shut():
            if self._results() > self._results_before:
                self._results_before = self._results()
                self._deaths = 0
            while self._host.is_dead and not self._stopping.is_set():
                self._deaths += 1
                if self._deaths > MOST_DEATHS:
                    return False
                self._stopping.wait(jittered(backoff_s(self._deaths, FIRST_PAUSE_S, LONGEST_PAUSE_S)))
                log.warning("engine_restarting", deaths=self._deaths)
                try:
                    self._host.restart()
                    log.info("engine_restarted")
                except EngineStartFailed as error:
                    log.error("engine_did_not_restart", error=str(error))
        return True
