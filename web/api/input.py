"""The input of a submission: pasted prompts, a stored file, or a file that comes with the request."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flask import request
from flask_openapi import FileStorage
from pydantic_core import from_json

from tasks.errors import NotFound, UserError
from tasks.file_sink import store_file
from tasks.files import delete_file, get_file
from tasks.rows import prompts_as_rows
from tasks.submission import JobRequest
from tasks.tables import File, Job, JobKind
from web.api.job_request import JobAsked, JobOptions, digest, job_request
from web.auth import backends, caller
from web.bodies import FORM, JSON, read_json, wrong_media_type
from web.uploads import received_file

CHECK_LIFETIME_S = 3_600.0
"""An input that is only checked is deleted at once, and after so long if that was cut short."""

PROMPTS_FILE = "prompts.jsonl"
ROWS_PURPOSE = "user_data"
"""Kept as long as the job, whose results are joined to them."""
REQUESTS_PURPOSE = "batch"

OBJECT_FIELDS = frozenset({"settings", "response_format", "json_schema", "metadata", "output_expires_s"})
"""Fields of a form that hold JSON; all others are text."""


class JobForm(JobOptions):
    """The file itself, and what is asked of it; fields that are no text hold JSON."""

    file: FileStorage
    """The input; it is streamed, whatever its size."""
    job: str | None = None
    """All the other fields as one JSON object, instead of one by one."""


@dataclass
class Input:
    """A stored input, and what is asked of it."""

    request: JobRequest
    digest: str
    """The same for the same submission."""
    file: File
    is_new: bool
    """Stored by this request: it belongs to the job, or to nobody."""
    has_owner: bool = False

    def was_used_by(self, job: Job) -> None:
        """Keep a new file, if the job was made of it: an earlier job has its own."""
        self.has_owner = job.input_file_id == self.file.id


@contextmanager
def received_input(*, lifetime_s: float | None = None) -> Iterator[Input]:
    """The request's input; at the end a new file that belongs to no job is deleted.

    Raises:
        UserError: the submission is wrong in any way that can be seen without reading the input.
        ValidationError: it is not what the description says.
    """
    if request.mimetype == JSON:
        given = _from_json(read_json(JobAsked), lifetime_s)
    elif request.mimetype == FORM:
        given = _from_form(lifetime_s)
    else:
        raise wrong_media_type(JSON, FORM)
    try:
        yield given
    finally:
        if given.is_new and not given.has_owner:
            delete_file(backends(), given.file.id, caller().tenant)


def _from_json(asked: JobAsked, lifetime_s: float | None) -> Input:
    if asked.prompts is not None:
        wanted = _request(asked, "", PROMPTS_FILE, pasted=True)
        file = store_file(
            backends(),
            prompts_as_rows(asked.prompts),
            filename=PROMPTS_FILE,
            tenant=caller().tenant,
            purpose=ROWS_PURPOSE,
            expires_s=lifetime_s,
        )
        return Input(replace(wanted, input_file_id=file.id), digest(asked, None), file, is_new=True)
    assert asked.input_file_id is not None
    try:
        file = get_file(backends().database, asked.input_file_id, caller().tenant)
    except NotFound as error:
        raise NotFound("file", asked.input_file_id, param="input_file_id") from error
    return Input(_request(asked, file.id, file.filename), digest(asked, None), file, is_new=False)


def _from_form(lifetime_s: float | None) -> Input:
    with received_file() as form:
        options = _options(form.fields)
        wanted = _request(options, "", form.filename)
        purpose = ROWS_PURPOSE if wanted.kind is JobKind.ROWS else REQUESTS_PURPOSE
        file = form.sink.finish(filename=form.filename, purpose=purpose, expires_s=lifetime_s)
    return Input(replace(wanted, input_file_id=file.id), digest(options, file.sha256), file, is_new=True)


def _options(fields: dict[str, str]) -> JobOptions:
    """The fields of a form: all of them as one JSON object in `job`, or one by one."""
    given: dict[str, Any] = dict(fields)
    whole = given.pop("job", None)
    if whole is not None:
        if given:
            raise UserError("Give the fields in 'job' or one by one, not both.", param=next(iter(given)))
        return JobOptions.model_validate_json(whole)
    for name in given.keys() & OBJECT_FIELDS:
        try:
            given[name] = from_json(given[name])
        except ValueError as error:
            raise UserError(f"'{name}' is not JSON: {error}.", param=name) from error
    return JobOptions.model_validate_json(json.dumps(given))


def _request(options: JobOptions, file_id: str, filename: str, *, pasted: bool = False) -> JobRequest:
    return job_request(
        options,
        file_id=file_id,
        filename=filename,
        default_model=backends().settings.default_model,
        tenant=caller().tenant,
        pasted=pasted,
    )
