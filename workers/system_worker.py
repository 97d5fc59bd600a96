"""The system worker: intake and settling on the threads of a Celery worker, the sweep on one beside it."""

import os
import socket

from celery.worker import state as celery_state

from config.celeryconfig import SYSTEM_QUEUE
from config.settings import Settings
from tasks import system
from tasks.app import app
from workers.periodic import Periodic
from workers.watchdog import Watchdog

CONCURRENCY = 6
"""Threads: a few long intakes must not keep the short ones waiting."""

TIDY_S = 3600.0
"""Seconds between two searches of storage for what nothing names."""


def run_system_worker(settings: Settings) -> int:
    """Work on the system queue until told to stop; returns the process's exit status.

    Several system workers sweep side by side, which is harmless.
    """
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
    with (
        Watchdog(app, [SYSTEM_QUEUE], lambda: len(celery_state.active_requests) < CONCURRENCY),
        Periodic("sweep", settings.tick_s, system.tick),
        Periodic("tidying", TIDY_S, system.tidy),
    ):
        worker.start()
    return int(worker.exitcode or 0)
