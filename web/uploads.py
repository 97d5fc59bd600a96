"""Forms with a file: the file goes straight into storage, never through memory or a temporary file."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Generic, TypeVar, cast

from flask import current_app, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from tasks.byte_sink import ByteSink
from tasks.errors import UserError
from tasks.file_sink import FileSink
from web.auth import backends, caller
from web.bodies import FORM, wrong_media_type

MAX_FIELDS = 64
MAX_FILENAME_CHARACTERS = 255
UNNAMED = "unnamed"
"""A file without a name. Browsers send an empty one where nothing was chosen."""
FRAME_BYTES = 1 << 20
"""Headers and boundaries around the parts of a form, at most."""

_Sink = TypeVar("_Sink", bound=ByteSink)


@dataclass(frozen=True)
class ReceivedForm(Generic[_Sink]):
    """A form whose file is in storage, but not finished."""

    fields: dict[str, str]
    sink: _Sink
    filename: str


@contextmanager
def received_form(
    open_sink: Callable[[], _Sink], *, file_field: str, limit_bytes: int
) -> Iterator[ReceivedForm[_Sink]]:
    """Read the request's form; its one file goes into a sink, which is abandoned if the block raises.

    Raises:
        UserError: it is no form, has no file or more than one, a field comes twice, or it is too long.
    """
    if request.mimetype != FORM:
        raise wrong_media_type(FORM)
    sinks: list[_Sink] = []

    def open_one(**_: object) -> IO[bytes]:
        if sinks:
            raise UserError("The form has more than one file.", param=file_field)
        sinks.append(open_sink())
        return cast(IO[bytes], sinks[0])

    try:
        fields, filename = _parse(open_one, file_field, limit_bytes)
        yield ReceivedForm(fields, sinks[0], filename)
    except BaseException:
        for sink in sinks:
            sink.abandon()
        raise


def received_file() -> AbstractContextManager[ReceivedForm[FileSink]]:
    """The request's form whose field `file` becomes a file of the caller's.

    Raises:
        UserError: as `received_form` says.
    """
    into, owner = backends(), caller()
    return received_form(
        lambda: FileSink(into, tenant=owner.tenant),
        file_field="file",
        limit_bytes=into.settings.max_file_bytes,
    )


def _parse(
    open_one: Callable[..., IO[bytes]], file_field: str, limit_bytes: int
) -> tuple[dict[str, str], str]:
    memory_bytes = current_app.config["MAX_FORM_MEMORY_SIZE"]
    # What declares to be too long is refused before it is read.
    request.max_content_length = limit_bytes + memory_bytes + FRAME_BYTES
    parser = FormDataParser(
        stream_factory=open_one,
        max_form_memory_size=memory_bytes,
        max_form_parts=MAX_FIELDS,
        silent=False,
    )
    try:
        _, fields, files = parser.parse(
            request.stream, request.mimetype, request.content_length, request.mimetype_params
        )
    except RequestEntityTooLarge as error:
        raise UserError(
            f"The form is too long: its file may have {limit_bytes} bytes, all other fields {memory_bytes}.",
            code="file_too_large",
            param=file_field,
        ) from error
    except ValueError as error:
        raise UserError(f"The body is not a whole multipart form: {error}.") from error
    if file_field not in files:
        raise UserError(
            f"The form has no file in the field {file_field!r}.",
            code="missing_required_parameter",
            param=file_field,
        )
    for name in fields:
        # The parser says so where it cannot read the name.
        if name is None:
            raise UserError("The form has a field whose name cannot be read.")
        if len(fields.getlist(name)) > 1:
            raise UserError(f"The field {name!r} comes more than once.", param=name)
    return fields.to_dict(), _clean(files[file_field].filename or "")


def _clean(filename: str) -> str:
    """The name alone, without folders and without what would disturb a header or a terminal."""
    name = PurePosixPath(filename.replace("\\", "/")).name
    shown = "".join(character if character.isprintable() else "_" for character in name)
    return shown[-MAX_FILENAME_CHARACTERS:] or UNNAMED
