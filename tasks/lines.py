"""The one line reader: blocks of bytes in, numbered lines out, in bounded memory."""

from collections.abc import Iterable, Iterator
from enum import Enum

UTF8_BOM = b"\xef\xbb\xbf"


class BadLine(Enum):
    """Why a line has no content."""

    TOO_LONG = "line_too_long"
    NOT_UTF8 = "invalid_encoding"


def read_lines(blocks: Iterable[bytes], max_line_bytes: int) -> Iterator[tuple[int, bytes | BadLine]]:
    r"""Yield (physical line number from 1, line without its newline) for every line that is not blank.

    Lines end at `\n` only, because U+2028 and its kind may stand inside JSON strings. One UTF-8 byte order
    mark at the start is dropped, CRLF is accepted, the last line needs no newline. A line above
    `max_line_bytes` is passed over without being held in memory.
    """
    number = 0
    tail = b""
    skipping = False
    for block in blocks:
        head, newline, tail_of_block = block.rpartition(b"\n")
        if not newline:
            tail += block
        else:
            whole_lines = tail + head
            tail = tail_of_block
            lines = whole_lines.split(b"\n")
            if number == 0:
                lines[0] = lines[0].removeprefix(UTF8_BOM)
            if skipping:
                number += 1
                yield number, BadLine.TOO_LONG
                del lines[0]
                skipping = False
            # One check of the whole block costs a tenth of a check for each line.
            all_utf8 = _is_utf8(whole_lines)
            for line in lines:
                number += 1
                if len(line) > max_line_bytes:
                    yield number, BadLine.TOO_LONG
                elif line and not line.isspace():
                    yield number, line if all_utf8 or _is_utf8(line) else BadLine.NOT_UTF8
        if len(tail) > max_line_bytes + len(UTF8_BOM):
            tail = b""
            skipping = True
    if number == 0:
        tail = tail.removeprefix(UTF8_BOM)
    if skipping or len(tail) > max_line_bytes:
        yield number + 1, BadLine.TOO_LONG
    elif tail and not tail.isspace():
        yield number + 1, tail if _is_utf8(tail) else BadLine.NOT_UTF8


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
