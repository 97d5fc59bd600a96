"""A worker under which the machine fails takes nothing for a while, instead of failing chunk after chunk."""

import threading

import structlog

from tasks.backoff import backoff_s, jittered
from workers.room import Room

log = structlog.get_logger()

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class Pause:
    """Pauses that grow with each failure in a row. Thread-safe."""

    def __init__(self, room: Room, stopping: threading.Event) -> None:
        self._room = room
        self._stopping = stopping
        self._failures = 0

    def take(self, reason: str) -> None:
        """Wait on this thread, and take nothing new on any other; not longer than the worker lives."""
        self._failures += 1
        seconds = jittered(backoff_s(self._failures, FIRST_PAUSE_S, LONGEST_PAUSE_S))
        log.warning("worker_pauses", reason=reason, seconds=round(seconds, 1))
        with self._room.shut():
            self._stopping.wait(seconds)

    def is_over(self) -> None:
        """A chunk came to its end: what was wrong is right again."""
        self._failures = 0
