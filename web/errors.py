"""The one mapping of errors to HTTP: OpenAI's envelope on the APIs, a page elsewhere."""

import structlog
from flask import Flask, Response, g, jsonify, render_template, request
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from werkzeug.exceptions import HTTPException, TooManyRequests, Unauthorized

from tasks.errors import Conflict, MachineError, NotFound, UserError, error_body
from tasks.faults import is_full
from tasks.submission import OutcomeUnknown
from web.auth import is_api_path

log = structlog.get_logger()

STATUS_OF_CODE = {
    "file_too_large": 413,
    "unsupported_media_type": 415,
    "timeout": 504,
}
"""User errors whose code has an HTTP status of its own; all others are 400, 404 or 409 by their class."""

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_CODES = {
    401: "invalid_api_key",
    403: "insufficient_role",
    404: "not_found",
    405: "method_not_allowed",
    413: "file_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
}

RETRY_AFTER_S = 5


def status_of(error: UserError) -> int:
    """The HTTP status of a user's error."""
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, Conflict):
        return 409
    return STATUS_OF_CODE.get(error.code, 400)


def answer_error(status: int, message: str, *, code: str | None = None, param: str | None = None) -> Response:
    """An error as this path's callers expect it."""
    if is_api_path(request.path):
        kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
        answer = jsonify(error_body(message, kind=kind, code=code, param=param))
    else:
        answer = Response(render_template("error.html", status=status, message=message), mimetype="text/html")
    answer.status_code = status
    if status in (429, 503):
        answer.headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    if status == 504:
        # OpenAI's client would ask again by itself, and wait as long once more.
        answer.headers["x-should-retry"] = "false"
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def validation_answer(error: ValidationError) -> Response:
    """The first fault that pydantic found, all others in the message."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    named = [(".".join(str(part) for part in fault["loc"]), _say(fault)) for fault in faults]
    message = "; ".join(f"'{name}': {what}" if name else what for name, what in named)
    return answer_error(400, f"{message}.", code="invalid_request", param=named[0][0] or None)


def _say(fault: ErrorDetails) -> str:
    """What pydantic says, in our words where they are clearer."""
    if fault["type"] == "extra_forbidden":
        return "there is no such field"
    return fault["msg"].removeprefix("Value error, ")


def register_errors(app: Flask) -> None:
    """Answer every error, known or not, without a stack trace."""

    @app.errorhandler(UserError)
    def user_error(error: UserError) -> Response:
        return answer_error(status_of(error), error.message, code=error.code, param=error.param)

    @app.errorhandler(ValidationError)
    def invalid(error: ValidationError) -> Response:
        return validation_answer(error)

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException) -> Response:
        status = error.code or 500
        answer = answer_error(status, error.description or error.name, code=_CODES.get(status))
        if isinstance(error, TooManyRequests | Unauthorized) or status == 405:
            for name, value in error.get_headers():
                if name in ("Retry-After", "Allow"):
                    answer.headers[name] = value
        return answer

    @app.errorhandler(MachineError)
    @app.errorhandler(DBAPIError)
    @app.errorhandler(PoolTimeout)
    def machine_error(error: Exception) -> Response:
        log.error(
            "request_failed", request=g.get("request_id"), path=request.path, error=type(error).__name__
        )
        if is_full(error):
            message = "The server has no room left: nothing of this was kept. Its operator must make some."
            return answer_error(507, message, code="storage_full")
        if isinstance(error, OutcomeUnknown):
            return answer_error(503, str(error), code="outcome_unknown")
        return answer_error(503, "A part of the server does not answer. Try again.", code="unavailable")

    @app.errorhandler(Exception)
    def unforeseen(error: Exception) -> Response:
        log.error("request_crashed", request=g.get("request_id"), path=request.path, exc_info=error)
        return answer_error(
            500, "The server failed at this request; its log says why.", code="internal_error"
        )
