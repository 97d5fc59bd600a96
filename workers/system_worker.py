"""The system worker: intake, dispatch, settling and the periodic sweep, in one Celery worker on threads."""

import os
import socket
from typing import Any

from celery import signals
from celery.beat import EmbeddedService
from celery.worker import state as celery_state

from config.celeryconfig import SYSTEM_QUEUE
from config.settings import Settings
from tasks import system
from tasks.app import app
from workers.watchdog import Watchdog

CONCURRENCY = 6
"""Threads: a few long intakes must not keep the tick waiting."""


def run_system_worker(settings: Settings) -> int:
    """Work on the system queue until told to stop; returns the process's exit status.

    Beat runs on a thread of this process. Several system workers tick side by side, which is harmless.
    """
    assert system.tick.app is not None
    # In memory: what the default scheduler keeps in a file is when each duty last ran, and ours is the tick.
    beat = EmbeddedService(app, thread=True, scheduler_cls="celery.beat:Scheduler")

    @signals.worker_ready.connect(weak=False)
    def on_ready(**_: Any) -> None:
        beat.start()

    worker = app.Worker(
        hostname=f"system@{socket.gethostname()}-{os.getpid()}",
        pool_cls="threads",
        concurrency=CONCURRENCY,
        queues=[SYSTEM_QUEUE],
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        loglevel=settings.log_level,
    )
    with Watchdog(app, [SYSTEM_QUEUE], lambda: len(celery_state.active_requests) < CONCURRENCY):
        worker.start()
    if beat.is_alive():
        beat.stop()
    return int(worker.exitcode or 0)
