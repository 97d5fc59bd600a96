"""`POST /api/jobs` and its dry run."""

from dataclasses import replace
from typing import Annotated

import msgspec
from flask import Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tasks.check import CheckReport, check_input
from tasks.submission import create_job
from tasks.system import announce
from web.api.answers import Answer, answer, errors
from web.api.input import CHECK_LIFETIME_S, JobForm, received_input
from web.api.job_request import JobAsked
from web.api.job_view import Fault, JobView, show_accepted, show_faults
from web.api.jobs import api
from web.auth import backends
from web.bodies import described

BODY = described(api, json=JobAsked, form=JobForm)


class SubmitHeaders(BaseModel):
    """Headers of a submission."""

    model_config = ConfigDict(populate_by_name=True, use_attribute_docstrings=True)

    idempotency_key: Annotated[
        str | None, Field(alias="Idempotency-Key", min_length=1, max_length=255, pattern=r"^[!-~]+$")
    ] = None
    """The same key with the same submission makes no second job: a client may repeat what got no answer."""


class Sample(Answer):
    """One request as it would run."""

    custom_id: str
    prompt: str | None
    """Its last user text, for people."""
    body: JsonValue


class Validation(Answer):
    """What a submission would become."""

    valid: bool
    errors: list[Fault]
    """The first faults of the input."""
    error_count: int
    """All of them."""
    requests: int
    model: str | None
    columns: list[str]
    """Of a table's rows."""
    samples: list[Sample]
    """The first requests."""
    estimated_tokens: int
    """Input and output, at most."""
    expected_s: float | None
    """Time at the model's latest speed; null when it never ran."""


@api.post("", request_body=BODY, responses={201: JobView, **errors(404, 409, 413, 415)})
def create(header: SubmitHeaders) -> Response:
    """Make a job

    From prompts or an uploaded file as JSON, or from the file itself as multipart/form-data.
    """
    with received_input() as given:
        asked = replace(
            given.request,
            idempotency_key=header.idempotency_key,
            idempotency_sha256=None if header.idempotency_key is None else given.digest,
            owns_input=given.is_new,
        )
        job = create_job(backends(), asked)
        given.was_used_by(job)
    announce(job.id)
    view = show_accepted(backends().database, job)
    return answer(view, 201, {"Location": view.links.self})


@api.post("/validate", request_body=BODY, responses={200: Validation, **errors(404, 413, 415)})
def validate() -> Response:
    """Check a submission without making a job

    Reads the whole input as a job would, and answers every fault that it finds.
    """
    with received_input(lifetime_s=CHECK_LIFETIME_S) as given:
        return answer(show_validation(check_input(backends(), given.request)))


def show_validation(report: CheckReport) -> Validation:
    """A dry run's report."""
    return Validation(
        valid=report.ok,
        errors=show_faults(report.faults),
        error_count=report.fault_count,
        requests=report.requests,
        model=report.model,
        columns=list(report.columns),
        samples=[
            Sample(custom_id=sample.custom_id, prompt=sample.prompt, body=msgspec.json.decode(sample.body))
            for sample in report.samples
        ],
        estimated_tokens=report.estimated_tokens,
        expected_s=report.expected_s,
    )
