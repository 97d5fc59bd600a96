"""`/v1/batches`: jobs as OpenAI's clients make and watch them."""

import hashlib
from typing import Annotated, Literal

from flask import Response
from flask_openapi import APIBlueprint, Tag
from pydantic import Field

from tasks.check import check_input
from tasks.durations import parse_duration
from tasks.jobs import cancel_job, get_job
from tasks.listing import list_jobs
from tasks.submission import JobRequest, create_job
from tasks.system import announce
from tasks.tables import Lane
from web.api.answers import KEY_SECURITY, answer, errors
from web.api.fields import Asked, Asking, Duration, Metadata, PageLimit, Text
from web.api.submit import SubmitHeaders, Validation, show_validation
from web.auth import backends, caller
from web.bodies import described, read_json
from web.openai.objects import Batch, BatchList, batch_object

TAG = Tag(name="Batches", description="OpenAI's Batch API.")
LATEST_EPOCH_S = 253_402_300_799
"""The end of the year 9999."""

api = APIBlueprint("batches", __name__, url_prefix="/v1/batches", abp_tags=[TAG], abp_security=KEY_SECURITY)


class BatchPath(Asking):
    """Which batch."""

    batch_id: Text


class BatchesQuery(Asking):
    """Which page."""

    after: Text | None = None
    """The id of the last batch of the page before."""
    limit: PageLimit = 20


class OutputExpiry(Asked):
    """How long output and error files are kept, counted from their creation."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3_600, le=2_592_000)]


class BatchAsked(Asked):
    """A new batch."""

    input_file_id: Text
    endpoint: Text
    """Where every request goes; each line's `url` says the same."""
    completion_window: Duration
    """`24h`, or another number of `s`, `m`, `h` or `d`: the batch expires after it."""
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None
    priority: Lane = Lane.NORMAL
    """Not OpenAI's."""
    deadline: Annotated[int | None, Field(ge=1, le=LATEST_EPOCH_S)] = None
    """Not OpenAI's: when the batch expires, in epoch seconds, instead of the window."""


class BatchValidation(Validation):
    """What a batch would become."""

    object: Literal["batch.validation"] = "batch.validation"


@api.post(
    "", request_body=described(api, json=BatchAsked), responses={200: Batch, **errors(404, 409, 413, 415)}
)
def create(header: SubmitHeaders) -> Response:
    """Make a batch"""
    asked = read_json(BatchAsked)
    key = header.idempotency_key
    sha256 = None if key is None else hashlib.sha256(asked.model_dump_json().encode()).hexdigest()
    job = create_job(backends(), _request(asked, key, sha256))
    announce(job.id)
    return answer(batch_object(job))


@api.post(
    "/validate",
    request_body=described(api, json=BatchAsked),
    responses={200: BatchValidation, **errors(404, 413, 415)},
)
def validate() -> Response:
    """Check a batch without making it

    Not OpenAI's. Reads the whole input as a batch would, and answers every fault that it finds.
    """
    report = show_validation(check_input(backends(), _request(read_json(BatchAsked))))
    return answer(BatchValidation(**dict(report)))


def _request(asked: BatchAsked, key: str | None = None, sha256: str | None = None) -> JobRequest:
    return JobRequest(
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        lane=asked.priority,
        tenant=caller().tenant,
        window_s=parse_duration(asked.completion_window),
        deadline_ms=None if asked.deadline is None else asked.deadline * 1000,
        metadata=asked.metadata,
        # As it was sent: `1d` does not come back as `24h`.
        options={"completion_window": asked.completion_window},
        output_expires_s=None if asked.output_expires_after is None else asked.output_expires_after.seconds,
        idempotency_key=key,
        idempotency_sha256=sha256,
    )


@api.get("", responses={200: BatchList, **errors()})
def index(query: BatchesQuery) -> Response:
    """List batches, newest first"""
    page = list_jobs(backends().database, caller().tenant, after=query.after, limit=query.limit)
    data = [batch_object(job) for job in page.items]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return answer(BatchList(data=data, first_id=first, last_id=last, has_more=page.has_more))


@api.get("/<string:batch_id>", responses={200: Batch, **errors(404)})
def show(path: BatchPath) -> Response:
    """Show a batch"""
    return answer(batch_object(get_job(backends().database, path.batch_id, caller().tenant)))


@api.post("/<string:batch_id>/cancel", responses={200: Batch, **errors(404, 409)})
def cancel(path: BatchPath) -> Response:
    """Cancel a batch; finished results are kept"""
    return answer(batch_object(cancel_job(backends().database, path.batch_id, caller().tenant)))
