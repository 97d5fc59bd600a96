"""The form of the submit page: its fields, the input that comes with it, and what it asks for."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flask_wtf.csrf import validate_csrf
from pydantic_core import from_json
from werkzeug.exceptions import BadRequest
from wtforms.validators import ValidationError as InvalidToken

from tasks.errors import NotFound, UserError
from tasks.file_sink import store_file
from tasks.files import get_file
from tasks.rows import prompts_as_rows
from tasks.submission import JobRequest
from tasks.tables import File
from web.api.job_request import JobOptions, job_request
from web.auth import backends, caller
from web.uploads import UNNAMED, received_file

LIFETIME_S = 24 * 3_600.0
"""A file that was only previewed goes after a day; a job keeps its own."""

PROMPTS_FILE = "prompts.jsonl"
NUMBERS = ("temperature", "top_p", "max_tokens")
TEXTS = ("template", "system", "id_column", "model", "endpoint", "priority")


@dataclass(frozen=True)
class Submitted:
    """A form that came in whole."""

    fields: dict[str, str]
    file: File
    request: JobRequest
    is_pasted: bool
    """The file was made of the prompts in the form, which has them still."""


class FormFault(Exception):
    """The form says something that cannot be done; its fields are shown again."""

    def __init__(self, fields: dict[str, str], fault: Exception) -> None:
        super().__init__(str(fault))
        self.fields = fields
        self.fault = fault


@contextmanager
def received_fields() -> Iterator[tuple[dict[str, str], File | None]]:
    """The form's fields, and the file that came with it, if one did.

    Raises:
        FormFault: the file is empty.
    """
    with received_file() as form:
        try:
            # Only now: looking for it earlier would read the whole form into memory.
            validate_csrf(form.fields.pop("csrf_token", ""))
        except InvalidToken as error:
            raise BadRequest("The form is too old: load the page again.") from error
        file = None
        if form.filename != UNNAMED and not form.sink.size_bytes:
            raise FormFault(form.fields, UserError("The file is empty.", param="file"))
        if form.sink.size_bytes:
            file = form.sink.finish(filename=form.filename, expires_s=LIFETIME_S)
        else:
            form.sink.abandon()
    yield form.fields, file


def submitted(fields: dict[str, str], file: File | None) -> Submitted:
    """What the form asks for, with its input in storage.

    Raises:
        FormFault: there is no input, or more than one, or a field is wrong.
    """
    try:
        return _submitted(fields, file)
    except (UserError, ValueError) as error:
        if file is not None:
            # It is not sent twice: the form that is shown again names it.
            fields = {**fields, "input_file_id": file.id}
        raise FormFault(fields, error) from error


def _submitted(fields: dict[str, str], file: File | None) -> Submitted:
    prompts = [line.strip() for line in fields.get("prompts", "").splitlines() if line.strip()]
    if file is None and (file_id := fields.get("input_file_id")):
        file = _kept_file(fields, file_id)
    if file is not None and prompts:
        raise UserError("Give prompts or a file, not both.", param="prompts")
    options = JobOptions.model_validate_json(json.dumps(_options(fields)))
    pasted = file is None
    if pasted and not prompts:
        raise UserError("Paste some prompts, one a line, or choose a file.", param="prompts")
    request = job_request(
        options,
        file_id="",
        filename=PROMPTS_FILE if file is None else file.filename,
        default_model=backends().settings.default_model,
        tenant=caller().tenant,
        pasted=pasted,
    )
    if file is None:
        file = store_file(
            backends(),
            prompts_as_rows(prompts),
            filename=PROMPTS_FILE,
            tenant=caller().tenant,
            expires_s=LIFETIME_S,
        )
    return Submitted(fields, file, replace(request, input_file_id=file.id), pasted)


def _kept_file(fields: dict[str, str], file_id: str) -> File:
    """The file of an earlier preview."""
    try:
        return get_file(backends().database, file_id, caller().tenant)
    except NotFound as error:
        del fields["input_file_id"]
        raise UserError("The file is no longer kept: choose it again.", param="file") from error


def _options(fields: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {name: fields[name] for name in TEXTS if fields.get(name, "").strip()}
    settings = {name: _number(name, fields[name]) for name in NUMBERS if fields.get(name, "").strip()}
    if settings:
        options["settings"] = settings
    if fields.get("json_schema", "").strip():
        options["json_schema"] = _object("json_schema", fields["json_schema"])
    return options


def _number(name: str, text: str) -> float:
    try:
        return int(text) if name == "max_tokens" else float(text)
    except ValueError as error:
        raise UserError(f"'{name}' must be a number.", param=name) from error


def _object(name: str, text: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise UserError(f"'{name}' is not JSON: {error}.", param=name) from error
