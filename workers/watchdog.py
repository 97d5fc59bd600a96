"""A worker that is connected but takes nothing, while messages wait that it could take, ends itself.

Old versions of Celery and kombu had many such faults, and a network can do it to any version. Whoever
supervises the process starts another one; the database has all that it held.
"""

import os
from collections.abc import Callable, Sequence

import structlog
from celery import Celery
from celery.worker import state as celery_state

from tasks.messages import BrokerAway, waiting_messages
from workers.periodic import Periodic

log = structlog.get_logger()

EXIT_STUCK = 71
"""Exit status of a worker that took nothing although it could."""

STUCK_S = 30.0
"""How long it may take nothing."""

CHECK_S = 5.0

LEAVE_S = 10.0
"""Time to leave in good order, before it is ended."""


class Watchdog(Periodic):
    """Watches while the block runs."""

    def __init__(self, app: Celery, queues: Sequence[str], may_take: Callable[[], bool]) -> None:
        super().__init__("watchdog", CHECK_S, self._check)
        self._app = app
        self._queues = queues
        self._may_take = may_take
        self._taken = -1
        self._idle_s = 0.0

    def _check(self) -> None:
        taken_before, self._taken = self._taken, sum(celery_state.total_count.values())
        is_idle = self._taken == taken_before and self._may_take() and self._messages_wait()
        self._idle_s = self._idle_s + CHECK_S if is_idle else 0.0
        if self._idle_s >= STUCK_S:
            log.error("worker_stuck", queues=list(self._queues), seconds=self._idle_s)
            celery_state.should_stop = EXIT_STUCK
            if not self.ended.wait(LEAVE_S):
                os._exit(EXIT_STUCK)

    def _messages_wait(self) -> bool:
        try:
            return any(waiting_messages(self._app, queue) for queue in self._queues)
        except BrokerAway:
            # A broker that does not answer is no reason to leave: the next process would fare no better.
            return False
