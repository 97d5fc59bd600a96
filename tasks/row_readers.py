"""Tables as rows, in bounded memory: CSV, JSON lines and Parquet."""

import codecs
import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tasks.errors import LineFault
from tasks.lines import BadLine, read_lines
from tasks.rows import RowsFormat
from tasks.storage import Storage
from tasks.validation import bad_line

BATCH_ROWS = 256
"""Rows of a Parquet file that are Python values at a time."""

NumberedRow = tuple[int, dict[str, Any] | LineFault]
"""A row with its number from 1: of its (last) physical line, in Parquet of the row."""


@dataclass(frozen=True)
class RowTable:
    """A table that is being read."""

    columns: tuple[str, ...]
    """Of JSON lines: those of the first row."""
    rows: Iterator[NumberedRow]
    schema: Any = None
    """Of Parquet: its `pyarrow.Schema`."""


class BrokenTable(Exception):
    """Nothing of the file can be read as a table."""

    def __init__(self, fault: LineFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row as JSON can have it: times, decimals and bytes of Parquet become text."""
    values: dict[str, Any] = msgspec.to_builtins(row)
    return values


def open_table(
    storage: Storage,
    key: str,
    kind: RowsFormat,
    blocks: Iterable[bytes],
    max_line_bytes: int,
    read: Callable[[int], None],
) -> RowTable:
    """Read a stored table. `blocks` are its bytes; Parquet is read from storage in ranges instead.

    `read` is called with the number of bytes whenever a part of a Parquet file was read.

    Raises:
        BrokenTable: it has no header, or is no table of this kind.
    """
    match kind:
        case RowsFormat.CSV:
            return _open_csv(blocks, max_line_bytes)
        case RowsFormat.JSONL:
            return _open_jsonl(blocks, max_line_bytes)
        case RowsFormat.PARQUET:
            return _open_parquet(storage, key, read)


def _open_jsonl(blocks: Iterable[bytes], max_line_bytes: int) -> RowTable:
    rows = _jsonl_rows(blocks, max_line_bytes)
    first = next(rows, None)
    if first is None:
        return RowTable((), iter(()))
    columns = tuple(first[1]) if isinstance(first[1], dict) else ()
    return RowTable(columns, _chain(first, rows))


def _chain(first: NumberedRow, rows: Iterator[NumberedRow]) -> Iterator[NumberedRow]:
    yield first
    yield from rows


def _jsonl_rows(blocks: Iterable[bytes], max_line_bytes: int) -> Iterator[NumberedRow]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in read_lines(blocks, max_line_bytes):
        if isinstance(line, BadLine):
            yield number, bad_line(number, line)
            continue
        try:
            yield number, decode(line)
        except msgspec.ValidationError:
            yield number, LineFault("invalid_row", "The line must be a JSON object.", number)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            yield number, LineFault("invalid_json_line", f"The line is not valid JSON: {error}.", number)


def _open_csv(blocks: Iterable[bytes], max_line_bytes: int) -> RowTable:
    # A setting of the whole process; all of ours want the same.
    csv.field_size_limit(max_line_bytes)
    reader = csv.reader(_text_lines(blocks, max_line_bytes), strict=True)
    try:
        header = next((cells for cells in reader if cells), None)
    except (csv.Error, _UnreadableText) as error:
        raise BrokenTable(_csv_fault(error, max(1, reader.line_num))) from error
    if header is None:
        raise BrokenTable(LineFault("empty_file", "The file has no rows."))
    _check_header(header, reader.line_num)
    return RowTable(tuple(header), _csv_rows(reader, header))


def _check_header(header: list[str], line: int) -> None:
    seen: set[str] = set()
    for number, name in enumerate(header, start=1):
        if not name.strip():
            message = f"Column {number} has no name: the first line must name every column."
            raise BrokenTable(LineFault("invalid_header", message, line))
        if name in seen:
            raise BrokenTable(LineFault("invalid_header", f"Two columns are called {name!r}.", line, name))
        seen.add(name)


def _csv_rows(reader: Any, header: list[str]) -> Iterator[NumberedRow]:
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield reader.line_num, _csv_fault(error, reader.line_num)
            continue
        except _UnreadableText as error:
            # Where its lines end can no longer be told.
            yield reader.line_num + 1, _csv_fault(error, reader.line_num + 1)
            return
        if cells is None:
            return
        if not cells:
            continue  # a blank line
        if len(cells) != len(header):
            message = f"The row has {len(cells)} cells; the header has {len(header)}."
            yield reader.line_num, LineFault("invalid_row", message, reader.line_num)
        else:
            yield reader.line_num, dict(zip(header, cells, strict=True))


class _UnreadableText(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _csv_fault(error: Exception, line: int) -> LineFault:
    if isinstance(error, _UnreadableText):
        return LineFault(error.code, str(error), line)
    return LineFault("invalid_row", f"The row is not valid CSV: {error}.", line)


def _text_lines(blocks: Iterable[bytes], max_line_bytes: int) -> Iterator[str]:
    r"""Lines with their ends, split at `\n` only; cells in quotes may hold line breaks of any kind."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    tail = ""
    try:
        for block in blocks:
            text = tail + decoder.decode(block)
            *lines, tail = text.split("\n")
            for line in lines:
                yield line + "\n"
            if len(tail) > max_line_bytes:
                raise _UnreadableText("line_too_long", "The line is longer than this server accepts.")
        tail += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _UnreadableText(
            "invalid_encoding", "The file is not valid UTF-8 from here on: save it as 'CSV UTF-8'."
        ) from error
    if tail:
        yield tail


def _open_parquet(storage: Storage, key: str, read: Callable[[int], None]) -> RowTable:
    # Loads in half a second: only those who bring Parquet pay.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.PythonFile(storage.reader(key), mode="r"))
        size = storage.size(key)
    except pa.ArrowException as error:
        message = f"The file is no Parquet file: {error}."
        raise BrokenTable(LineFault("invalid_table", message)) from error
    return RowTable(tuple(file.schema_arrow.names), _parquet_rows(file, size, read), file.schema_arrow)


def _parquet_rows(file: Any, size_bytes: int, read: Callable[[int], None]) -> Iterator[NumberedRow]:
    import pyarrow as pa

    number = 0
    bytes_per_row = size_bytes / max(1, file.metadata.num_rows)
    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield number, row
            read(int(bytes_per_row * batch.num_rows))
    except (pa.ArrowException, OSError) as error:
        yield number + 1, LineFault("invalid_table", f"The file is damaged: {error}.", number + 1)
