"""Celery tasks of the system worker: thin shells around the domain's verbs."""

from contextlib import suppress

from celery import Task

from config.celeryconfig import SYSTEM_QUEUE
from tasks import dispatch
from tasks.app import app
from tasks.backends import backends
from tasks.errors import NotFound
from tasks.failpoints import Failpoint, failpoint
from tasks.finalise import settle
from tasks.intake import run_intake
from tasks.jobs import get_job
from tasks.messages import Message, broker_is_away, send, waiting_messages
from tasks.orphans import remove_orphans
from tasks.retention import expire_jobs
from tasks.sweep import sweep
from tasks.tables import Job, JobStatus


@app.task(name="gristmill.intake")
def intake(job_id: str) -> None:
    """Validate and plan a job, then put its first chunks on the runway."""
    run_intake(backends(), job_id)
    failpoint(Failpoint.PLAN_ACCEPTED)
    with suppress(NotFound):
        _fill_runway(get_job(backends().database, job_id))


def _fill_runway(job: Job) -> None:
    if job.status == JobStatus.IN_PROGRESS and job.model is not None:
        dispatch.fill_runway(app, backends(), job.model)


# Events are what Flower shows, and the end of a job is no work.
@app.task(name="gristmill.settle", send_events=False)
def settle_job(job_id: str) -> None:
    """Bring a job whose results are all in to its end."""
    # A message that comes twice may be of a job that is gone.
    with suppress(NotFound):
        settle(backends(), job_id)


def tick() -> None:
    """Sweep, and tell of the jobs that nobody reads, as far as no message tells of them yet.

    Not a task: it must go on while the broker is away and while every thread reads a long input.
    """
    waiting = sweep(app, backends())
    if not waiting or broker_is_away(app):
        return
    for job_id in waiting[: max(0, len(waiting) - waiting_messages(app, SYSTEM_QUEUE))]:
        _tell(intake, job_id)


def tidy() -> None:
    """Apply the rules of retention that look at everything, which is why it is done seldom."""
    expire_jobs(backends())
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
