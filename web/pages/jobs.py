"""`/jobs`: the list, one job, its requests, and what can be done with it."""

from collections.abc import Mapping
from dataclasses import dataclass

from flask import Blueprint, Response, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from tasks.errors import Conflict, NotFound, UserError
from tasks.export import ExportFormat, open_export
from tasks.figures import history, tally
from tasks.jobs import cancel_job, delete_job, get_job, set_lane
from tasks.listing import list_jobs
from tasks.prompts import prompt_text, requests_of
from tasks.results import StoredResult, answer_text, error_message, results_page
from tasks.rows import RowsSpec
from tasks.submission import rerun_job
from tasks.system import announce
from tasks.tables import FINAL_STATUSES, Job, JobStatus, Lane, ResultSet, Role, TallySubject
from web.api.job_view import JobView, show_job, show_jobs
from web.auth import backends, caller
from web.downloads import attachment
from web.pages.plots import latency_bars, speed_line

JOBS_A_PAGE = 20
REQUESTS_A_PAGE = 25
SHOWN_CHARACTERS = 20_000
"""Of one text. Browsers take many seconds to lay out a longer one that has no spaces."""

pages = Blueprint("job_pages", __name__, url_prefix="/jobs")


@dataclass(frozen=True)
class RequestRow:
    """A request with its answer, as the table shows it."""

    result: StoredResult
    prompt: str | None
    text: str | None
    error: str | None

    @property
    def succeeded(self) -> bool:
        """Whether it has an answer."""
        return self.result.status_code == 200


@pages.get("")
def index() -> ResponseReturnValue:
    """All jobs of the caller's tenant."""
    return render_template("jobs.html", **_list())


@pages.get("/live")
def index_live() -> ResponseReturnValue:
    """Their table alone, for pages that keep it fresh."""
    return render_template("parts/jobs_table.html", **_list())


def _list() -> dict[str, object]:
    asked = request.args
    status = asked.get("status", "")
    page = list_jobs(
        backends().database,
        caller().tenant,
        after=asked.get("after") or None,
        limit=JOBS_A_PAGE,
        statuses=[JobStatus(status)] if status in list(JobStatus) else (),
        model=asked.get("model") or None,
        search=asked.get("q") or None,
    )
    filters = {name: asked[name] for name in ("status", "model", "q") if asked.get(name)}
    return {
        "jobs": show_jobs(backends().database, page.items),
        "next": page.items[-1].id if page.has_more else None,
        "filters": filters,
        "after": asked.get("after"),
        "statuses": list(JobStatus),
        "models": list(backends().settings.catalogue),
    }


@pages.get("/<job_id>")
def show(job_id: str) -> ResponseReturnValue:
    """One job."""
    job = _job(job_id)
    return render_template("job.html", **_progress(job), **_requests(job, request.args))


@pages.get("/<job_id>/live")
def show_live(job_id: str) -> ResponseReturnValue:
    """Its progress and plots alone."""
    return render_template("parts/job_progress.html", **_progress(_job(job_id)))


@pages.get("/<job_id>/requests")
def requests_live(job_id: str) -> ResponseReturnValue:
    """Its table of requests alone."""
    job = _job(job_id)
    view = show_job(backends().database, job)
    return render_template("parts/requests_table.html", job=view, **_requests(job, request.args))


def _job(job_id: str) -> Job:
    return get_job(backends().database, job_id, caller().tenant)


def _progress(job: Job) -> dict[str, object]:
    database = backends().database
    view: JobView = show_job(database, job)
    return {
        "job": view,
        "running": job.status not in FINAL_STATUSES,
        "line": speed_line(history(database, job.id)),
        "bars": latency_bars(tally(database, job.id, TallySubject.LATENCY)),
        "lanes": list(Lane),
        "formats": list(ExportFormat),
        "spec": RowsSpec.from_options(job.options) if "template" in job.options else None,
        "may_submit": caller().role.rank >= Role.SUBMIT.rank,
    }


def _requests(job: Job, asked: Mapping[str, str]) -> dict[str, object]:
    which = asked.get("which", "")
    after = asked.get("after", "")
    results, has_more = results_page(
        backends().database,
        job.id,
        which=ResultSet(which) if which in list(ResultSet) else ResultSet.ALL,
        after=int(after) if after.isascii() and after.isdigit() and len(after) < 19 else -1,
        limit=REQUESTS_A_PAGE,
        search=asked.get("q") or None,
    )
    return {
        "rows": _rows(job, results),
        "more": results[-1].index if has_more else None,
        "which": which,
        "search": asked.get("q", ""),
        "first_page": not after,
        "asked": {name: asked[name] for name in ("which", "q", "after") if asked.get(name)},
    }


def _rows(job: Job, results: list[StoredResult]) -> list[RequestRow]:
    found = requests_of(backends(), job, results)
    prompts = {index: prompt_text(planned.body) for index, planned in found.items()}
    return [
        RequestRow(result, prompts.get(result.index), answer_text(result), error_message(result))
        for result in results
    ]


@pages.get("/<job_id>/requests/<int:index>")
def show_request(job_id: str, index: int) -> ResponseReturnValue:
    """One request: prompt and answer side by side, and both as they went over the wire."""
    job = _job(job_id)
    result = _result(job, index)
    body = _body(job, result, "request")
    return render_template(
        "request.html",
        job=show_job(backends().database, job),
        row=_rows(job, [result])[0],
        request_body=None if body is None else body.decode(),
        answer_body=None if result.body is None else result.body.decode(),
        shown=SHOWN_CHARACTERS,
    )


@pages.get("/<job_id>/requests/<int:index>/<part>")
def show_body(job_id: str, index: int, part: str) -> ResponseReturnValue:
    """The whole of what went over the wire one way, whatever its length."""
    job = _job(job_id)
    result = _result(job, index)
    body = _body(job, result, part) if part in ("request", "answer") else None
    if body is None:
        raise NotFound(part, str(index))
    return Response(body, mimetype="application/json")


def _result(job: Job, index: int) -> StoredResult:
    after = min(index, 2**62) - 1
    results, _ = results_page(backends().database, job.id, after=after, limit=1)
    if not results or results[0].index != index:
        raise NotFound("request", str(index))
    return results[0]


def _body(job: Job, result: StoredResult, part: str) -> bytes | None:
    if part == "answer":
        return result.body
    planned = requests_of(backends(), job, [result]).get(result.index)
    return None if planned is None else planned.body


@pages.get("/<job_id>/download")
def download(job_id: str) -> ResponseReturnValue:
    """The results that are there, as a file."""
    job = _job(job_id)
    kind, which = request.args.get("format", ""), request.args.get("which", "")
    if kind not in list(ExportFormat):
        raise UserError("'format' must be jsonl, csv or parquet.", param="format")
    wanted = ResultSet(which) if which in list(ResultSet) else ResultSet.ALL
    export = open_export(backends(), job, ExportFormat(kind), wanted)
    complete = job.status in FINAL_STATUSES
    return attachment(export.blocks, export.media_type, export.filename, complete=complete)


@pages.post("/<job_id>/cancel")
def cancel(job_id: str) -> ResponseReturnValue:
    """Stop a job; finished results are kept."""
    _try(lambda: cancel_job(backends().database, job_id, caller().tenant), "The job is being cancelled.")
    return redirect(url_for("job_pages.show", job_id=job_id))


@pages.post("/<job_id>/priority")
def change_priority(job_id: str) -> ResponseReturnValue:
    """Move what is left of a job to another lane."""
    wanted = request.form.get("priority", "")
    if wanted not in list(Lane):
        raise UserError("'priority' must be urgent, normal or bulk.", param="priority")
    _try(
        lambda: set_lane(backends().database, job_id, Lane(wanted), caller().tenant),
        f"The priority is {wanted} now.",
    )
    return redirect(url_for("job_pages.show", job_id=job_id))


@pages.post("/<job_id>/rerun")
def rerun(job_id: str) -> ResponseReturnValue:
    """A new job of what did not succeed."""
    try:
        job = rerun_job(backends(), caller().tenant, job_id)
    except Conflict as error:
        flash(error.message, "error")
        return redirect(url_for("job_pages.show", job_id=job_id))
    announce(job.id)
    return redirect(url_for("job_pages.show", job_id=job.id))


@pages.post("/<job_id>/delete")
def delete(job_id: str) -> ResponseReturnValue:
    """Remove a job that has ended, with its results."""
    try:
        delete_job(backends().database, job_id, caller().tenant)
    except Conflict as error:
        flash(error.message, "error")
        return redirect(url_for("job_pages.show", job_id=job_id))
    flash("The job and its results are deleted.", "done")
    return redirect(url_for("job_pages.index"))


def _try(action: object, done: str) -> None:
    assert callable(action)
    try:
        action()
    except Conflict as error:
        flash(error.message, "error")
    else:
        flash(done, "done")
