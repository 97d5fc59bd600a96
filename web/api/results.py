"""`/api/jobs/{id}/results`: a job's results by page, or all of them as a file."""

from enum import StrEnum
from typing import Annotated

from flask import Response
from flask_openapi import APIBlueprint
from pydantic import Field

from tasks.export import ExportFormat, open_export
from tasks.jobs import get_job
from tasks.prompts import prompt_text, requests_of
from tasks.results import StoredResult, answer_text, error_message, results_page
from tasks.tables import FINAL_STATUSES, ResultSet
from web.api.answers import KEY_SECURITY, Answer, answer, errors
from web.api.fields import MAX_INTEGER, Asking, PageLimit, Text
from web.api.jobs import TAG, JobPath
from web.auth import backends, caller
from web.downloads import attachment, described_download

api = APIBlueprint(
    "results",
    __name__,
    url_prefix="/api/jobs/<string:job_id>/results",
    abp_tags=[TAG],
    abp_security=KEY_SECURITY,
)


class ResultStatus(StrEnum):
    """How a request ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class ResultsQuery(Asking):
    """Which results, and how many of them."""

    which: ResultSet = ResultSet.ALL
    """All results, the good ones (`output`), or the others (`errors`)."""
    after: Annotated[int, Field(ge=-1, le=MAX_INTEGER)] = -1
    """Index of the last result of the page before: its `next` value."""
    limit: PageLimit = 50
    search: Annotated[Text | None, Field(max_length=200)] = None
    """A part of the custom_id."""
    prompts: bool = False
    """Show each request's prompt too."""


class DownloadQuery(Asking):
    """Which results, in which format."""

    format: ExportFormat = ExportFormat.JSONL
    which: ResultSet = ResultSet.ALL


class ResultError(Answer):
    """Why a request failed."""

    code: str | None
    """Set where the engine gave no answer, such as `batch_expired`."""
    message: str | None


class ResultView(Answer):
    """The result of one request."""

    index: int
    """Position in the input, from 0."""
    custom_id: str
    status: ResultStatus
    status_code: int | None
    """Of the engine's answer; null when there was none."""
    text: str | None
    """The answer's text; null where it has none, as with embeddings."""
    error: ResultError | None
    prompt: str | None
    """Null unless it was asked for and is still kept."""
    input_tokens: int
    output_tokens: int
    duration_ms: int
    """Time in the engine, waiting included."""


class ResultList(Answer):
    """A page of results in input order."""

    data: list[ResultView]
    next: int | None
    """What `after` gets for the page behind this one; null at the end."""


@api.get("", responses={200: ResultList, **errors(404)})
def list_results(path: JobPath, query: ResultsQuery) -> Response:
    """Read results by page, also while the job runs"""
    job = get_job(backends().database, path.job_id, caller().tenant)
    results, has_more = results_page(
        backends().database,
        job.id,
        which=query.which,
        after=query.after,
        limit=query.limit,
        search=query.search,
    )
    requests = requests_of(backends(), job, results) if query.prompts else {}
    prompts = {index: prompt_text(request.body) for index, request in requests.items()}
    views = [_show(result, prompts.get(result.index)) for result in results]
    return answer(ResultList(data=views, next=results[-1].index if has_more else None))


def _show(result: StoredResult, prompt: str | None) -> ResultView:
    succeeded = result.status_code == 200
    return ResultView(
        index=result.index,
        custom_id=result.custom_id,
        status=ResultStatus.SUCCEEDED if succeeded else ResultStatus.FAILED,
        status_code=result.status_code,
        text=answer_text(result) if succeeded else None,
        error=None if succeeded else ResultError(code=result.error_code, message=error_message(result)),
        prompt=prompt,
        input_tokens=result.input_tokens,
        output_tokens=result.output_tokens,
        duration_ms=result.duration_ms,
    )


@api.get(
    "/download",
    responses={
        200: described_download("application/jsonl", "text/csv", "application/vnd.apache.parquet"),
        **errors(404),
    },
)
def download(path: JobPath, query: DownloadQuery) -> Response:
    """Download results as JSONL, CSV or Parquet

    They come in input order, as a stream; those of a table's rows beside their columns.
    """
    job = get_job(backends().database, path.job_id, caller().tenant)
    export = open_export(backends(), job, query.format, query.which)
    complete = job.status in FINAL_STATUSES
    return attachment(export.blocks, export.media_type, export.filename, complete=complete)
