"""`/v1/files`: uploads that stream into storage, and results that are read as if they were files."""

from typing import Annotated, Literal

from flask import Response
from flask_openapi import APIBlueprint, FileStorage, Tag
from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import UserError
from tasks.files import KNOWN_PURPOSES, delete_file, get_file, open_content
from tasks.listing import list_files
from web.api.answers import KEY_SECURITY, answer, errors
from web.api.fields import Asked, Asking, Text
from web.auth import backends, caller
from web.bodies import described
from web.downloads import attachment, described_download
from web.openai.objects import FileDeleted, FileList, FileObject, file_object
from web.uploads import received_file

TAG = Tag(name="Files", description="OpenAI's Files API.")
MIN_EXPIRY_S, MAX_EXPIRY_S = 3_600, 2_592_000

api = APIBlueprint("files", __name__, url_prefix="/v1/files", abp_tags=[TAG], abp_security=KEY_SECURITY)


class FilePath(Asking):
    """Which file."""

    file_id: Text


class FilesQuery(Asking):
    """Which files, and how many of them."""

    after: Text | None = None
    """The id of the last file of the page before."""
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    """By the time of creation."""
    purpose: Text | None = None


class FileExpiry(Asked):
    """When a file is to be deleted."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)]


class FileForm(BaseModel):
    """A file, and what it is for."""

    model_config = ConfigDict(populate_by_name=True)

    file: FileStorage
    """It is streamed, whatever its size."""
    purpose: str
    """`batch` for the input of a batch; OpenAI's others are stored."""
    expires_after_anchor: Annotated[Literal["created_at"] | None, Field(alias="expires_after[anchor]")] = None
    expires_after_seconds: Annotated[
        int | None, Field(alias="expires_after[seconds]", ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)
    ] = None


@api.post("", request_body=described(api, form=FileForm), responses={200: FileObject, **errors(413, 415)})
def create() -> Response:
    """Upload a file"""

    with received_file() as form:
        purpose, expires_s = _asked(form.fields)
        file = form.sink.finish(filename=form.filename, purpose=purpose, expires_s=expires_s)
    return answer(file_object(file))


def _asked(fields: dict[str, str]) -> tuple[str, int | None]:
    """Purpose and lifetime in seconds."""
    known = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}
    if unknown := sorted(fields.keys() - known):
        raise UserError(f"Unknown field {unknown[0]!r}.", param=unknown[0])
    purpose = checked_purpose(fields.get("purpose"))
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return purpose, None
    if anchor != "created_at":
        raise UserError("'expires_after[anchor]' must be 'created_at'.", param="expires_after[anchor]")
    if seconds is None or not seconds.isascii() or not seconds.isdigit():
        raise UserError("'expires_after[seconds]' must be a whole number.", param="expires_after[seconds]")
    if not MIN_EXPIRY_S <= int(seconds[:20]) <= MAX_EXPIRY_S:
        raise UserError(
            f"'expires_after[seconds]' must be {MIN_EXPIRY_S} to {MAX_EXPIRY_S}.",
            param="expires_after[seconds]",
        )
    return purpose, int(seconds)


def checked_purpose(purpose: str | None) -> str:
    """A purpose that files here can have.

    Raises:
        UserError: it is none of them.
    """
    if purpose is None:
        raise UserError("'purpose' is missing.", code="missing_required_parameter", param="purpose")
    if purpose not in KNOWN_PURPOSES:
        known = ", ".join(sorted(KNOWN_PURPOSES))
        raise UserError(f"Unknown purpose {purpose!r}; known: {known}.", param="purpose")
    return purpose


@api.get("", responses={200: FileList, **errors()})
def index(query: FilesQuery) -> Response:
    """List files"""
    page = list_files(
        backends().database,
        caller().tenant,
        after=query.after,
        limit=query.limit,
        newest_first=query.order == "desc",
        purpose=query.purpose,
    )
    data = [file_object(file) for file in page.items]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return answer(FileList(data=data, first_id=first, last_id=last, has_more=page.has_more))


@api.get("/<string:file_id>", responses={200: FileObject, **errors(404)})
def show(path: FilePath) -> Response:
    """Show a file"""
    return answer(file_object(get_file(backends().database, path.file_id, caller().tenant)))


@api.get(
    "/<string:file_id>/content",
    responses={
        200: described_download("application/octet-stream"),
        **errors(404),
    },
)
def content(path: FilePath) -> Response:
    """Download a file, or the results that a batch has so far"""
    opened = open_content(backends(), path.file_id, caller().tenant)
    return attachment(
        opened.blocks,
        "application/octet-stream",
        opened.file.filename,
        complete=opened.complete,
        size_bytes=opened.size_bytes,
    )


@api.delete("/<string:file_id>", responses={200: FileDeleted, **errors(404, 409)})
def delete(path: FilePath) -> Response:
    """Delete a file

    The bytes of an input stay until the batches that read it have ended.
    """
    delete_file(backends(), path.file_id, caller().tenant)
    return answer(FileDeleted(id=path.file_id))
