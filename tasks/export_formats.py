"""JSONL, CSV and Parquet as streams of blocks, in bounded memory."""

import csv
import io
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tasks.result_rows import NUMBERS, RESULT_COLUMNS, InputTable, Row, our_columns, result_values
from tasks.results import StoredResult, output_line
from tasks.row_readers import plain
from tasks.template_filters import text_of

BLOCK_BYTES = 1 << 18
"""Rows are handed on together: one write for each costs more than making them."""

ROW_GROUP_ROWS = 2_000

ROW_GROUP_CHARACTERS = 16 << 20
"""A row group is held in memory until it is written: of long rows it has fewer."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What spreadsheets take for the start of a formula; the last four are the wide forms of the first."""

_is_number = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?").fullmatch

Joined = Iterator[tuple[Row, StoredResult]]


def jsonl_blocks(rows: Joined, table: InputTable | None, job_id: str) -> Iterator[bytes]:
    """OpenAI's output lines; of a job from rows, objects of the input's columns and ours."""
    names = our_columns(table)
    block = bytearray()
    for row, result in rows:
        if table is None:
            block += output_line(job_id, result)
        else:
            ours = dict(zip(names, result_values(result), strict=True))
            ours[names[-1]] = None if result.body is None else msgspec.Raw(result.body)
            block += msgspec.json.encode({**row, **ours}) + b"\n"
        if len(block) >= BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def csv_blocks(rows: Joined, table: InputTable | None) -> Iterator[bytes]:
    """A table for spreadsheets: no cell of it is taken for a formula."""
    columns = () if table is None else table.columns
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(formula_safe(name) for name in (*columns, *our_columns(table)))
    is_typed = table is not None and table.schema is not None
    for row, result in rows:
        values = plain(row) if is_typed else row
        theirs = (text_of(values.get(name)) for name in columns)
        writer.writerow(formula_safe(value) for value in (*theirs, *result_values(result)))
        if text.tell() >= BLOCK_BYTES:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def formula_safe(value: Any) -> Any:
    """A cell that a spreadsheet will not run: text that would start a formula gets a leading quote.

    A negative number is none.
    """
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS) and not _is_number(value):
        return "'" + value
    return value


def parquet_blocks(rows: Joined, table: InputTable | None) -> Iterator[bytes]:
    """A Parquet file. Columns of a Parquet input keep their types; those of other inputs are text."""
    # Loads in half a second: only those who export Parquet pay.
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [] if table is None else _input_fields(table)
    names = our_columns(table)
    for name, kind in zip(names, RESULT_COLUMNS, strict=True):
        fields.append(pa.field(name, pa.int64() if kind in NUMBERS else pa.string()))
    schema = pa.schema(fields)
    sink = _Blocks()
    file = pa.PythonFile(sink, mode="w")
    # Statistics hold whole values, and stay in memory for every row group until the end.
    with pq.ParquetWriter(file, schema, compression="zstd", write_statistics=False) as writer:
        for group in _row_groups(rows, table, names):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            yield sink.take()
    yield sink.take()


def _row_groups(rows: Joined, table: InputTable | None, names: tuple[str, ...]) -> Iterator[list[Row]]:
    group: list[Row] = []
    characters = 0
    for row, result in rows:
        values = {**_typed(row, table), **dict(zip(names, result_values(result), strict=True))}
        group.append(values)
        characters += sum(len(value) for value in values.values() if isinstance(value, str | bytes))
        if len(group) >= ROW_GROUP_ROWS or characters >= ROW_GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _input_fields(table: InputTable) -> list[Any]:
    import pyarrow as pa

    if table.schema is not None:
        return list(table.schema.remove_metadata())
    return [pa.field(name, pa.string()) for name in table.columns]


def _typed(row: Row, table: InputTable | None) -> Row:
    if table is None or table.schema is not None:
        return row
    return {name: None if _is_nothing(value) else text_of(value) for name, value in row.items()}


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


class _Blocks(io.RawIOBase):
    """A file that keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._held += data
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def take(self) -> bytes:
        """What was written since the last time."""
        taken = bytes(self._held)
        self._held.clear()
        return taken
