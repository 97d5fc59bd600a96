"""`/`: hand over prompts or a file, look at what it would become, and start it."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from flask import Blueprint, Response, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from pydantic import ValidationError

from tasks.check import CheckReport, check_input
from tasks.errors import NotFound, UserError
from tasks.files import delete_file, get_file
from tasks.rows import ROWS_ENDPOINTS
from tasks.submission import create_job
from tasks.system import announce
from tasks.tables import File, Lane, Role
from web.auth import backends, caller, checks_token, needs
from web.errors import status_of
from web.pages.submission_form import FormFault, Submitted, received_fields, submitted

pages = Blueprint("submit_page", __name__)


@pages.get("/submit")
@pages.get("/")
@needs(Role.READ)
def form() -> ResponseReturnValue:
    """The empty form; with `?template=` and its kind, filled in."""
    return _page({name: value for name, value in request.args.items() if name != "input_file_id"})


@pages.post("/")
@checks_token
def send() -> ResponseReturnValue:
    """Preview, or start the job."""
    try:
        with received_fields() as (fields, file):
            action = fields.pop("action", "preview")
        given = submitted(fields, file)
        return _start(given) if action == "submit" else _preview(given)
    except FormFault as fault:
        return _page(fault.fields, fault=fault.fault)


def _start(given: Submitted) -> ResponseReturnValue:
    try:
        # Its own input is kept as long as the job, whose results are joined to it.
        job = create_job(backends(), replace(given.request, owns_input=True))
    except UserError as error:
        _drop_pasted(given)
        raise FormFault(_fields_to_show(given), error) from error
    announce(job.id)
    return redirect(url_for("job_pages.show", job_id=job.id))


def _preview(given: Submitted) -> ResponseReturnValue:
    fields = _fields_to_show(given)
    try:
        report = check_input(backends(), given.request)
    except UserError as error:
        raise FormFault(fields, error) from error
    finally:
        _drop_pasted(given)
    return _page(fields, report=report, file=given.file)


def _drop_pasted(given: Submitted) -> None:
    """The form has the prompts still: they come again with it."""
    if given.is_pasted:
        delete_file(backends(), given.file.id, caller().tenant)


def _fields_to_show(given: Submitted) -> dict[str, str]:
    """The form names a file that came with it, so that it is not sent twice."""
    return given.fields if given.is_pasted else {**given.fields, "input_file_id": given.file.id}


def _page(
    fields: dict[str, str],
    *,
    report: CheckReport | None = None,
    fault: Exception | None = None,
    file: File | None = None,
) -> ResponseReturnValue:
    settings = backends().settings
    if file is None and (file_id := fields.get("input_file_id")):
        # Where it is gone, the rest of the form is shown all the same.
        with suppress(NotFound):
            file = get_file(backends().database, file_id, caller().tenant)
    page = render_template(
        "submit.html",
        fields=fields,
        report=report,
        faults=_messages(fault),
        file=file,
        models=list(settings.catalogue),
        default_model=settings.default_model,
        endpoints=ROWS_ENDPOINTS,
        lanes=list(Lane),
        may_submit=caller().role.rank >= Role.SUBMIT.rank,
    )
    return Response(page, status=_status(fault))


def _messages(fault: Exception | None) -> list[tuple[str | None, str]]:
    """Each field at fault with what is wrong."""
    if isinstance(fault, ValidationError):
        return [
            (".".join(str(part) for part in found["loc"]) or None, found["msg"].removeprefix("Value error, "))
            for found in fault.errors(include_url=False, include_input=False, include_context=False)
        ]
    if isinstance(fault, UserError):
        return [(fault.param, fault.message)]
    return [] if fault is None else [(None, str(fault))]


def _status(fault: Any) -> int:
    if fault is None:
        return 200
    return status_of(fault) if isinstance(fault, UserError) else 400
