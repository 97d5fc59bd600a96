"""`/api/jobs`: list jobs, look at one, cancel it, change its priority, run it again, delete it."""

from typing import Annotated

from flask import Response
from flask_openapi import APIBlueprint, Tag
from pydantic import Field

from tasks.durations import parse_duration
from tasks.jobs import cancel_job, delete_job, get_job, set_lane
from tasks.listing import list_jobs
from tasks.submission import rerun_job
from tasks.system import announce
from tasks.tables import JobKind, JobStatus, Lane
from web.api.answers import KEY_SECURITY, Answer, answer, errors
from web.api.fields import Asked, Asking, Duration, PageLimit, Text
from web.api.job_view import JobView, show_accepted, show_job, show_jobs
from web.auth import backends, caller
from web.bodies import described, read_json

TAG = Tag(name="Jobs", description="Work that was handed over, as rows and results.")

api = APIBlueprint("jobs", __name__, url_prefix="/api/jobs", abp_tags=[TAG], abp_security=KEY_SECURITY)


class JobPath(Asking):
    """Which job."""

    job_id: Text


class JobsQuery(Asking):
    """Which jobs, and how many of them."""

    status: list[JobStatus] = Field(default=[])
    """Only jobs in this state; may be repeated."""
    kind: list[JobKind] = Field(default=[])
    """Only jobs of this kind; may be repeated."""
    model: Text | None = None
    search: Annotated[Text | None, Field(max_length=200)] = None
    """A part of the job's id or of its file's name."""
    after: Text | None = None
    """The last job of the page before: its `next` value."""
    limit: PageLimit = 20


class JobList(Answer):
    """A page of jobs, newest first."""

    data: list[JobView]
    next: str | None
    """What `after` gets for the page behind this one; null at the end."""


class Change(Asked):
    """What can be changed about a job that has not ended."""

    priority: Lane


class Rerun(Asked):
    """How the new job differs from the old one."""

    priority: Lane | None = None
    """As before, unless it is given."""
    window: Duration | None = None
    """Time until the new job expires, such as `24h`."""


@api.get("", responses={200: JobList, **errors()})
def list_page(query: JobsQuery) -> Response:
    """List jobs, newest first"""
    page = list_jobs(
        backends().database,
        caller().tenant,
        after=query.after,
        limit=query.limit,
        statuses=query.status,
        model=query.model,
        kinds=query.kind,
        search=query.search,
    )
    following = page.items[-1].id if page.has_more else None
    return answer(JobList(data=show_jobs(backends().database, page.items), next=following))


@api.get("/<string:job_id>", responses={200: JobView, **errors(404)})
def show(path: JobPath) -> Response:
    """Look at one job"""
    database = backends().database
    return answer(show_job(database, get_job(database, path.job_id, caller().tenant)))


@api.post("/<string:job_id>/cancel", responses={200: JobView, **errors(404, 409)})
def cancel(path: JobPath) -> Response:
    """Cancel a job

    Finished results are kept. Cancelling a job that is being cancelled already is fine.
    """
    database = backends().database
    return answer(show_job(database, cancel_job(database, path.job_id, caller().tenant)))


@api.patch(
    "/<string:job_id>",
    request_body=described(api, json=Change),
    responses={200: JobView, **errors(404, 409, 413, 415)},
)
def change(path: JobPath) -> Response:
    """Change a job's priority

    It takes effect at once for everything that no worker holds yet.
    """
    asked = read_json(Change)
    database = backends().database
    return answer(show_job(database, set_lane(database, path.job_id, asked.priority, caller().tenant)))


@api.post(
    "/<string:job_id>/rerun",
    request_body=described(api, json=Rerun, required=False),
    responses={201: JobView, **errors(404, 409, 413, 415)},
)
def rerun(path: JobPath) -> Response:
    """Run again what did not succeed

    Makes a new job of the failed, expired and cancelled requests of one that has ended.
    """
    asked = read_json(Rerun, optional=True)
    window_s = None if asked.window is None else parse_duration(asked.window)
    job = rerun_job(backends(), caller().tenant, path.job_id, lane=asked.priority, window_s=window_s)
    announce(job.id)
    view = show_accepted(backends().database, job)
    return answer(view, 201, {"Location": view.links.self})


@api.delete("/<string:job_id>", responses={204: None, **errors(404, 409)})
def delete(path: JobPath) -> Response:
    """Delete a job that has ended, with its results"""
    delete_job(backends().database, path.job_id, caller().tenant)
    return Response(status=204)
