"""Celery tasks of the system worker: thin shells around the domain's verbs."""

import threading
import time

from celery import Task

from config.celeryconfig import SYSTEM_QUEUE
from tasks import dispatch
from tasks.app import app
from tasks.backends import backends
from tasks.failpoints import Failpoint, failpoint
from tasks.finalise import settle
from tasks.intake import run_intake
from tasks.jobs import get_job
from tasks.messages import Message, send
from tasks.orphans import remove_orphans
from tasks.sweep import sweep
from tasks.tables import JobStatus

# Events are what Flower shows. A tick each second would bury the work there, and the end of a job is no work.
_tick_lock = threading.Lock()
_last_tick = 0.0


@app.task(name="gristmill.intake")
def intake(job_id: str) -> None:
    """Validate and plan a job, then put its first chunks on the runway."""
    run_intake(backends(), job_id)
    failpoint(Failpoint.PLAN_ACCEPTED)
    job = get_job(backends().database, job_id)
    if job.status == JobStatus.IN_PROGRESS and job.model is not None:
        dispatch.fill_runway(app, backends(), job.model)


@app.task(name="gristmill.settle", send_events=False)
def settle_job(job_id: str) -> None:
    """Bring a job whose results are all in to its end."""
    settle(backends(), job_id)


@app.task(name="gristmill.tick", send_events=False)
def tick() -> None:
    """Sweep. Ticks that piled up while nobody listened count as one."""
    global _last_tick
    if not _tick_lock.acquire(blocking=False):
        return
    try:
        if time.monotonic() - _last_tick < backends().settings.tick_s / 2:
            return
        for job_id in sweep(app, backends()):
            _tell(intake, job_id)
        _last_tick = time.monotonic()
    finally:
        _tick_lock.release()


@app.task(name="gristmill.tidy", send_events=False)
def tidy() -> None:
    """Remove what nothing names any more; seldom, because it looks at everything in storage."""
    remove_orphans(backends())


def announce(job_id: str) -> None:
    """Tell the system worker of a new job. Without a broker the sweeper finds it later."""
    failpoint(Failpoint.JOB_COMMITTED)
    _tell(intake, job_id)


def announce_complete(job_id: str) -> None:
    """Tell the system worker that the last result of a job is in; the sweeper would find it too."""
    _tell(settle_job, job_id)


def _tell(task: Task, job_id: str) -> None:
    send(app, [Message(task.name, args=(job_id,), queue=SYSTEM_QUEUE, shown=f"job {job_id}")])
