"""The error tree, in three branches by whose fault it is, and the one mapping to OpenAI's wire shape.

- `UserError`: the submission is wrong; the caller can fix it (4xx, or a line of the job's errors).
- a request's own fault in the engine is not an exception: it is that request's result.
- `MachineError`: nobody asked for it; the work is done again elsewhere or later.
"""

from typing import Any

import msgspec


class UserError(Exception):
    """What the user sent cannot be done."""

    def __init__(self, message: str, *, code: str = "invalid_request", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class NotFound(UserError):
    """The id names nothing that this caller may see."""

    def __init__(self, what: str, identifier: str, *, param: str = "id", code: str = "not_found") -> None:
        super().__init__(f"No such {what}: {identifier!r}.", code=code, param=param)


class Conflict(UserError):
    """The thing exists, but not in a state that allows this."""


class MachineError(Exception):
    """A part of the system failed; the work goes back to be done again."""


class LeaseLost(MachineError):
    """The chunk belongs to another worker, or its job has ended: nothing may be written for it."""


class LineFault(msgspec.Struct, frozen=True):
    """One structural fault of an input file, as the `errors.data[]` of a batch object shows it."""

    code: str
    message: str
    line: int | None = None
    """Physical line number, from 1."""
    param: str | None = None


REQUEST_ERROR_MESSAGES = {
    "batch_cancelled": "This request was not run: its job was cancelled.",
    "batch_expired": "This request was not run: its job expired before it was reached.",
    "engine_crash": "The engine stopped while it ran this request, as often as a request may be started.",
}
"""Why a request has no HTTP answer: code to message."""


def error_body(
    message: str, *, kind: str, code: str | int | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error envelope in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
