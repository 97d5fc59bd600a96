"""A worker that is connected but takes nothing, while messages wait that it could take, ends itself.

Old versions of Celery and kombu had many such faults, and a network can do it to any version. Whoever
supervises the process starts another one; the database has all that it held.
"""

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import structlog
from celery import Celery
from celery.worker import state as celery_state

from tasks.messages import BrokerAway, waiting_messages

log = structlog.get_logger()

EXIT_STUCK = 71
"""Exit status of a worker that took nothing although it could."""

STUCK_S = 30.0
"""How long it may take nothing."""

CHECK_S = 5.0

LEAVE_S = 10.0
"""Time to leave in good order, before it is ended."""


class Watchdog:
    """Watches while the block runs."""

    def __init__(self, app: Celery, queues: Sequence[str], may_take: Callable[[], bool]) -> None:
        self._app = app
        self._queues = queues
        self._may_take = may_take
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _watch(self) -> None:
        idle_s = 0.0
        taken = -1
        while not self._ended.wait(CHECK_S):
            taken_before, taken = taken, sum(celery_state.total_count.values())
            is_idle = taken == taken_before and self._may_take() and self._messages_wait()
            idle_s = idle_s + CHECK_S if is_idle else 0.0
            if idle_s >= STUCK_S:
                log.error("worker_stuck", queues=list(self._queues), seconds=idle_s)
                celery_state.should_stop = EXIT_STUCK
                if not self._ended.wait(LEAVE_S):
                    os._exit(EXIT_STUCK)

    def _messages_wait(self) -> bool:
        try:
            return any(waiting_messages(self._app, queue) for queue in self._queues)
        except BrokerAway:
            # A broker that does not answer is no reason to leave: the next process would fare no better.
            return False
