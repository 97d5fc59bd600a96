"""Results as rows of a table, those of a job from rows beside the columns of its input."""

from collections.abc import Container, Iterator
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

_LIKE_OURS = frozenset(RESULT_COLUMNS) | {PREFIX + name for name in RESULT_COLUMNS}

MAX_COLUMNS = 1_000
"""Columns of JSON lines that tables of results have: each line may bring new ones."""

Row = dict[str, Any]


@dataclass(frozen=True)
class InputTable:
    """The rows that a job's results belong to."""

    columns: tuple[str, ...]
    ours: tuple[str, ...]
    """How `RESULT_COLUMNS` are called beside them."""
    schema: Any
    """Of a Parquet input: its `pyarrow.Schema`."""
    rows: Iterator[Row]


def input_table(backends: Backends, job: Job) -> InputTable | None:
    """The job's rows, without columns once its input is no longer kept; null when it has no rows."""
    if "template" not in job.options:
        return None
    spec = RowsSpec.from_options(job.options)
    with backends.database.read() as session:
        key = session.scalars(select(File.storage_key).where(File.id == job.input_file_id)).one()
    try:
        if key is None:
            raise StoredObjectMissing("the input was deleted")
        columns = _every_column(_open(backends, spec, key), spec)
        table = _open(backends, spec, key)
    except (StoredObjectMissing, BrokenTable):
        return InputTable((), RESULT_COLUMNS, None, repeat({}))
    return InputTable(
        tuple(columns)[:MAX_COLUMNS] if spec.format is RowsFormat.JSONL else tuple(columns),
        tuple(_free_name(name, columns) for name in RESULT_COLUMNS),
        table.schema,
        (row for _, row in table.rows if not isinstance(row, LineFault)),
    )


def _open(backends: Backends, spec: RowsSpec, key: str) -> RowTable:
    blocks = backends.storage.stream(key)
    limit_bytes = backends.settings.max_line_bytes
    return open_table(backends.storage, key, spec.format, blocks, limit_bytes, lambda _: None)


def _every_column(table: RowTable, spec: RowsSpec) -> dict[str, None]:
    """The columns in order. Each JSON line may have some of its own: all lines are looked at.

    Above `MAX_COLUMNS`, only those whose names ours could have.
    """
    names = dict.fromkeys(table.columns)
    if spec.format is RowsFormat.JSONL:
        for _, row in table.rows:
            if not isinstance(row, LineFault) and not row.keys() <= names.keys():
                has_room = len(names) < MAX_COLUMNS
                names.update(dict.fromkeys(name for name in row if has_room or name in _LIKE_OURS))
    return names


def _free_name(name: str, taken: Container[str]) -> str:
    while name in taken:
        name = PREFIX + name
    return name


def our_columns(table: InputTable | None) -> tuple[str, ...]:
    """The names of our columns beside those of the input."""
    return RESULT_COLUMNS if table is None else table.ours


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
