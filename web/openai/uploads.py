"""`/v1/uploads`: files too large for one request come in parts."""

from typing import Annotated

from flask import Response
from flask_openapi import APIBlueprint, FileStorage, Tag
from pydantic import BaseModel, Field, StringConstraints

from tasks.errors import UserError
from tasks.uploads import (
    MAX_PART_BYTES,
    MAX_PARTS,
    PartSink,
    cancel_upload,
    complete_upload,
    create_upload,
    open_part,
)
from web.api.answers import KEY_SECURITY, answer, errors
from web.api.fields import MAX_INTEGER, Asked, Asking, Text
from web.auth import backends, caller
from web.bodies import described, read_json
from web.openai.files import FileExpiry, checked_purpose
from web.openai.objects import UploadObject, UploadPartObject, upload_object, upload_part_object
from web.uploads import received_form

TAG = Tag(name="Uploads", description="OpenAI's Uploads API.")

api = APIBlueprint("uploads", __name__, url_prefix="/v1/uploads", abp_tags=[TAG], abp_security=KEY_SECURITY)


class UploadPath(Asking):
    """Which upload."""

    upload_id: Text


class UploadAsked(Asked):
    """A file that is to come."""

    filename: Annotated[Text, StringConstraints(min_length=1, max_length=255)]
    purpose: Text
    bytes: Annotated[int, Field(ge=0, le=MAX_INTEGER)]
    """Of all parts together."""
    mime_type: Text
    """Not looked at."""
    expires_after: FileExpiry | None = None
    """When the file is to be deleted."""


class PartForm(BaseModel):
    """The bytes of one part."""

    data: FileStorage


class CompletionAsked(Asked):
    """The parts in their order."""

    part_ids: Annotated[list[Text], Field(max_length=MAX_PARTS)]
    md5: Annotated[str | None, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")] = None
    """Of the whole file, in hexadecimal."""


@api.post(
    "", request_body=described(api, json=UploadAsked), responses={200: UploadObject, **errors(413, 415)}
)
def create() -> Response:
    """Announce a file that comes in parts"""
    asked = read_json(UploadAsked)
    upload = create_upload(
        backends(),
        caller().tenant,
        filename=asked.filename,
        purpose=checked_purpose(asked.purpose),
        size_bytes=asked.bytes,
        file_expires_s=None if asked.expires_after is None else asked.expires_after.seconds,
    )
    return answer(upload_object(upload))


@api.post(
    "/<string:upload_id>/parts",
    request_body=described(api, form=PartForm),
    responses={200: UploadPartObject, **errors(404, 409, 413, 415)},
)
def add_part(path: UploadPath) -> Response:
    """Send a part of at most 64 MiB"""

    def open_sink() -> PartSink:
        return open_part(backends(), path.upload_id, caller().tenant)

    with received_form(open_sink, file_field="data", limit_bytes=MAX_PART_BYTES) as form:
        if form.fields:
            name = next(iter(form.fields))
            raise UserError(f"Unknown field {name!r}.", param=name)
        part = form.sink.finish()
    return answer(upload_part_object(part))


@api.post(
    "/<string:upload_id>/complete",
    request_body=described(api, json=CompletionAsked),
    responses={200: UploadObject, **errors(404, 409, 413, 415)},
)
def complete(path: UploadPath) -> Response:
    """Join the parts to a file"""
    asked = read_json(CompletionAsked)
    upload, file = complete_upload(backends(), path.upload_id, caller().tenant, asked.part_ids, asked.md5)
    return answer(upload_object(upload, file))


@api.post("/<string:upload_id>/cancel", responses={200: UploadObject, **errors(404, 409)})
def cancel(path: UploadPath) -> Response:
    """Give up an upload"""
    return answer(upload_object(cancel_upload(backends(), path.upload_id, caller().tenant)))
