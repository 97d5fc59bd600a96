"""Results as rows of a table, those of a job from rows beside the columns of its input."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from sqlalchemy import select

from tasks.backends import Backends
from tasks.errors import LineFault
from tasks.results import StoredResult, answer_text, error_message
from tasks.row_readers import BrokenTable, RowTable, open_table
from tasks.rows import RowsFormat, RowsSpec
from tasks.storage import StoredObjectMissing
from tasks.tables import File, Job

RESULT_COLUMNS = (
    "custom_id",
    "status_code",
    "text",
    "error_code",
    "error_message",
    "input_tokens",
    "output_tokens",
    "duration_ms",
    "response",
)
"""`response` is the answer's body as JSON text."""

NUMBERS = frozenset({"status_code", "input_tokens", "output_tokens", "duration_ms"})

PREFIX = "gristmill_"
"""Set before a column of ours that the input has too."""

Row = dict[str, Any]


@dataclass(frozen=True)
class InputTable:
    """The rows that a job's results belong to."""

    columns: tuple[str, ...]
    schema: Any
    """Of a Parquet input: its `pyarrow.Schema`."""
    rows: Iterator[Row]


def input_table(backends: Backends, job: Job) -> InputTable | None:
    """The job's rows; null when it came from request lines, or its input is no longer kept."""
    if "template" not in job.options:
        return None
    spec = RowsSpec.from_options(job.options)
    with backends.database.read() as session:
        key = session.scalars(select(File.storage_key).where(File.id == job.input_file_id)).one()
    if key is None:
        return None
    try:
        columns = _every_column(_open(backends, spec, key), spec)
        table = _open(backends, spec, key)
    except (StoredObjectMissing, BrokenTable):
        return None
    return InputTable(columns, table.schema, (row for _, row in table.rows if not isinstance(row, LineFault)))


def _open(backends: Backends, spec: RowsSpec, key: str) -> RowTable:
    blocks = backends.storage.stream(key)
    limit_bytes = backends.settings.max_line_bytes
    return open_table(backends.storage, key, spec.format, blocks, limit_bytes, lambda _: None)


def _every_column(table: RowTable, spec: RowsSpec) -> tuple[str, ...]:
    """Each JSON line may have columns of its own: all of them are looked at."""
    if spec.format is not RowsFormat.JSONL:
        return table.columns
    names: dict[str, None] = {}
    for _, row in table.rows:
        if not isinstance(row, LineFault):
            names.update(dict.fromkeys(row))
    return tuple(names)


def our_columns(table: InputTable | None) -> tuple[str, ...]:
    """The names of our columns beside those of the input."""
    taken = frozenset() if table is None else frozenset(table.columns)
    return tuple(PREFIX + name if name in taken else name for name in RESULT_COLUMNS)


def joined(results: Iterator[StoredResult], table: InputTable | None) -> Iterator[tuple[Row, StoredResult]]:
    """Each result with its row of the input, both in input order."""
    if table is None:
        yield from zip(repeat({}), results, strict=False)
        return
    position = -1
    row: Row = {}
    for result in results:
        while position < result.index:
            row = next(table.rows)
            position += 1
        yield row, result


def result_values(result: StoredResult) -> tuple[Any, ...]:
    """The values of `RESULT_COLUMNS`."""
    return (
        result.custom_id,
        result.status_code,
        answer_text(result),
        result.error_code,
        error_message(result),
        result.input_tokens,
        result.output_tokens,
        result.duration_ms,
        None if result.body is None else result.body.decode(),
    )
