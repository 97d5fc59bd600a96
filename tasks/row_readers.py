"""Tables as rows, in bounded memory: CSV, JSON lines and Parquet."""

import codecs
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from tasks.errors import LineFault
from tasks.lines import BadLine, read_lines
from tasks.rows import RowsFormat
from tasks.storage import Storage
from tasks.validation import bad_line

BATCH_ROWS = 256
"""Rows of a Parquet file that are Python values at a time."""

BYTE_ORDER_MARK = "\ufeff"

BUFFER_BYTES = 1 << 20
"""Of each column of a Parquet file, what is read at a time."""

NumberedRow = tuple[int, dict[str, Any] | LineFault]
"""A row with its number from 1: of its first physical line, in Parquet of the row."""


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
    return RowTable(columns, chain((first,), rows))


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
    lines = _TextLines(blocks, max_line_bytes)
    rows = _csv_cells(lines)
    header: list[str] = []
    for line, cells in rows:
        if isinstance(cells, LineFault):
            raise BrokenTable(cells)
        _check_header(cells, line)
        header = cells
        break
    if not header:
        raise BrokenTable(LineFault("empty_file", "The file has no rows."))
    return RowTable(tuple(header), _csv_rows(rows, header))


def _check_header(header: Sequence[str], line: int | None = None) -> None:
    seen: set[str] = set()
    for number, name in enumerate(header, start=1):
        if not name.strip():
            message = f"Column {number} has no name: every column needs one, in the first line."
            raise BrokenTable(LineFault("invalid_header", message, line))
        if name in seen:
            raise BrokenTable(LineFault("invalid_header", f"Two columns are called {name!r}.", line))
        seen.add(name)


def _csv_rows(rows: Iterator[tuple[int, list[str] | LineFault]], header: list[str]) -> Iterator[NumberedRow]:
    for line, cells in rows:
        if isinstance(cells, LineFault):
            yield line, cells
        elif len(cells) != len(header):
            message = f"The row has {len(cells)} cells; the header has {len(header)}."
            yield line, LineFault("invalid_row", message, line)
        else:
            yield line, dict(zip(header, cells, strict=True))


def _csv_cells(lines: "_TextLines") -> Iterator[tuple[int, list[str] | LineFault]]:
    """Each row that is not blank, with the line on which it starts."""
    reader = csv.reader(lines, strict=True)
    while True:
        line = reader.line_num + 1
        lines.begin_row()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield line, LineFault("invalid_row", f"The row is not valid CSV: {error}.", line)
            continue
        except _UnreadableText as error:
            # Where its rows end can no longer be told.
            yield line, LineFault(error.code, str(error), line)
            return
        if cells is None:
            return
        if cells:
            yield line, cells


class _UnreadableText(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _TextLines:
    r"""Lines with their ends, split at `\n` only; cells in quotes may hold line breaks of any kind.

    A row of many lines is held in memory until its last quote: so its length is limited too.
    """

    def __init__(self, blocks: Iterable[bytes], max_row_bytes: int) -> None:
        self._lines = self._split(blocks)
        self._most = max_row_bytes
        self._row_characters = 0

    def __iter__(self) -> "_TextLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._row_characters += len(line)
        if self._row_characters > self._most:
            raise self._too_long()
        return line

    def begin_row(self) -> None:
        """What comes now belongs to another row."""
        self._row_characters = 0

    def _split(self, blocks: Iterable[bytes]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        tail = ""
        for block in chain(blocks, (b"",)):
            broken: UnicodeDecodeError | None = None
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                # What comes before it is handed on, so that the fault gets the right line.
                broken = error
                text = error.object[: error.start].decode().removeprefix(BYTE_ORDER_MARK)
            *lines, tail = (tail + text).split("\n")
            for line in lines:
                yield line + "\n"
            if broken is not None:
                message = "The row is not valid UTF-8: save the file as 'CSV UTF-8'."
                raise _UnreadableText("invalid_encoding", message) from broken
            if len(tail) > self._most:
                raise self._too_long()
        if tail:
            yield tail

    def _too_long(self) -> _UnreadableText:
        message = (
            f"The row is longer than {self._most} bytes (max_line_bytes), or a quote in it is not closed."
        )
        return _UnreadableText("line_too_long", message)


def _open_parquet(storage: Storage, key: str, read: Callable[[int], None]) -> RowTable:
    # Loads in half a second: only those who bring Parquet pay.
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = storage.size(key)
    try:
        source = pa.PythonFile(storage.reader(key), mode="r")
        # Otherwise whole columns of a row group, which may be the whole file, are read at once.
        file = pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False)
        schema = _schema_of_python(file.schema_arrow)
    except (pa.ArrowException, OSError) as error:
        message = f"The file is no Parquet file: {error}."
        raise BrokenTable(LineFault("invalid_table", message)) from error
    _check_header(schema.names)
    return RowTable(tuple(schema.names), _parquet_rows(file, schema, size, read), schema)


def _schema_of_python(schema: Any) -> Any:
    """The schema with the times that Python has: they end at microseconds."""
    import pyarrow as pa

    types = {"time64[ns]": pa.time64("us"), "duration[ns]": pa.duration("us")}

    def field_of(field: Any) -> Any:
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            return field.with_type(pa.timestamp("us", field.type.tz))
        return field.with_type(types.get(str(field.type), field.type))

    return pa.schema([field_of(field) for field in schema])


def _parquet_rows(
    file: Any, schema: Any, size_bytes: int, read: Callable[[int], None]
) -> Iterator[NumberedRow]:
    import pyarrow as pa

    number = 0
    bytes_per_row = size_bytes / max(1, file.metadata.num_rows)
    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            if batch.schema != schema:
                batch = batch.cast(schema, safe=False)
            yield from _python_rows(batch, number)
            number += batch.num_rows
            read(int(bytes_per_row * batch.num_rows))
    except (pa.ArrowException, OSError) as error:
        yield number + 1, LineFault("invalid_table", f"The file is damaged: {error}.", number + 1)


def _python_rows(batch: Any, before: int) -> Iterator[NumberedRow]:
    """The rows of a batch that comes after so many others."""
    try:
        yield from enumerate(batch.to_pylist(), start=before + 1)
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            message = f"The row has a value that cannot be read: {error}."
            yield before + 1, LineFault("invalid_row", message, before + 1)
            return
        # Something in one of them that Python has no value for: nothing was handed on yet.
        for place in range(batch.num_rows):
            yield from _python_rows(batch.slice(place, 1), before + place)
