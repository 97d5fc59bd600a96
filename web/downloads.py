"""Files that a client saves: streamed, with a name, and with a word on whether more will come."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from flask import Response

COMPLETE_HEADER = "X-Gristmill-Complete"


def attachment(
    blocks: Iterable[bytes], media_type: str, filename: str, *, complete: bool, size_bytes: int | None = None
) -> Response:
    """A download. `complete` is false for the results of a job that still runs."""
    answer = Response(blocks, mimetype=media_type)
    answer.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(filename)}"
    answer.headers[COMPLETE_HEADER] = "true" if complete else "false"
    if size_bytes is not None:
        answer.content_length = size_bytes
    return answer


def described_download(*media_types: str) -> dict[str, Any]:
    """What the API's description says of a download."""
    return {
        "content": {kind: {"schema": {"type": "string"}} for kind in media_types},
        "headers": {
            COMPLETE_HEADER: {
                "description": "`false` while the job still runs: the file has what is finished so far.",
                "schema": {"type": "string", "enum": ["true", "false"]},
            }
        },
    }
