"""What every route of the job API answers: JSON of a described model, or the error envelope."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flask import Response
from pydantic import BaseModel, ConfigDict

KEY_SECURITY: list[dict[str, list[str]]] = [{"key": []}]


class Answer(BaseModel):
    """Base of all answers: their fields are always there."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True, use_attribute_docstrings=True)


class ErrorDetail(Answer):
    """What went wrong."""

    message: str
    type: str
    """Class of the error, such as `invalid_request_error`."""
    param: str | None
    """Field, query parameter or header at fault, where it is one."""
    code: str | None
    """Stable word for programs; see the catalogue of errors."""


class ErrorEnvelope(Answer):
    """An error, in OpenAI's shape."""

    error: ErrorDetail


def errors(*statuses: int) -> dict[str | int, Any]:
    """The error answers of a route: these, and those that every route may give."""
    return dict.fromkeys([400, 401, 403, *statuses, 503], ErrorEnvelope)


def answer(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A model as a JSON answer."""
    return Response(model.model_dump_json(), status=status, headers=headers, mimetype="application/json")


def moment(epoch_ms: int | None) -> datetime | None:
    """A time of the database, which shows as ISO 8601 in UTC."""
    return None if epoch_ms is None else datetime.fromtimestamp(epoch_ms / 1000, UTC)


def media(*types: str) -> dict[str, Any]:
    """The description of an answer that is not JSON of a model."""
    return {"content": {kind: {"schema": {"type": "string"}} for kind in types}}
