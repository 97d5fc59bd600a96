"""Bodies of requests: read within a limit, checked by the model that describes them."""

from typing import Any, TypeVar

from flask import request
from flask_openapi import APIBlueprint, RequestBody
from flask_openapi.utils import parse_body, parse_form
from pydantic import BaseModel
from werkzeug.exceptions import RequestEntityTooLarge

from tasks.errors import UserError

MAX_JSON_BYTES = 16 << 20
"""Longest JSON body: it is held in memory. Files have another way in, which streams."""

JSON = "application/json"
FORM = "multipart/form-data"

_Model = TypeVar("_Model", bound=BaseModel)


def read_json(model: type[_Model], *, optional: bool = False) -> _Model:
    """The request's body as this model; where it is optional, none at all is an empty object.

    Raises:
        UserError: it is too long, or its media type is not JSON.
        ValidationError: it is no JSON, or not what the model says.
    """
    data = _read(MAX_JSON_BYTES)
    if optional and not data:
        return model.model_validate({})
    if request.mimetype != JSON:
        raise wrong_media_type(JSON)
    return model.model_validate_json(data)


def read_body(limit_bytes: int, media_type: str) -> bytes:
    """The request's body as it is.

    Raises:
        UserError: it is too long, or of another media type.
    """
    data = _read(limit_bytes)
    if request.mimetype != media_type:
        raise wrong_media_type(media_type)
    return data


def _read(limit_bytes: int) -> bytes:
    request.max_content_length = limit_bytes
    try:
        return request.get_data(cache=False)
    except RequestEntityTooLarge as error:
        raise UserError(f"The body is larger than {limit_bytes} bytes.", code="file_too_large") from error


def wrong_media_type(*known: str) -> UserError:
    """The error for a body of a type that this route does not take."""
    return UserError(
        f"Send the body as {' or '.join(known)}; it came as {request.mimetype or 'nothing'}.",
        code="unsupported_media_type",
        param="Content-Type",
    )


def described(
    api: APIBlueprint,
    *,
    json: type[BaseModel] | None = None,
    form: type[BaseModel] | None = None,
    required: bool = True,
) -> RequestBody:
    """What the API's description says of a body that `read_json` or a form parser reads."""
    content: dict[str, Any] = {}
    for model, parse in ((json, parse_body), (form, parse_form)):
        if model is not None:
            media, schemas = parse(model)
            content.update(media)
            api.components_schemas.update(schemas)
    return RequestBody(content=content, required=required)
