"""Writing a job's results to a file: JSONL, CSV or Parquet, by the file's ending."""

import csv
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EISDIR
from pathlib import Path
from typing import Any

from tasks.database import Database
from tasks.errors import UserError
from tasks.results import (
    StoredResult,
    answer_text,
    error_message,
    iter_results,
    output_line,
)

COLUMNS = (
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
"""Columns of CSV and Parquet, whatever the results are. `response` is the answer's body as JSON text."""

ROW_GROUP_ROWS = 2_000

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def export_results(database: Database, job_id: str, path: Path) -> int:
    """Write all results in input order; returns how many. The file appears whole or not at all.

    Raises:
        UserError: the ending names no known format, or the place cannot be written.
    """
    write = writer_for(path)
    partial = _partial(path)
    try:
        count = write(iter_results(database, job_id), job_id, partial)
        partial.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return count


def check_destination(path: Path) -> None:
    """Find out now whether results can be written there, not after a night's work; makes the folder.

    Raises:
        UserError: the ending names no known format, or the place cannot be written.
    """
    writer_for(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _partial(path).touch()
        _partial(path).unlink()
        if path.is_dir():
            raise IsADirectoryError(EISDIR, "it is a folder")
    except OSError as error:
        raise _unwritable(path, error) from error


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"the results cannot be written to {path}: {error.strerror}", param="output")


def writer_for(path: Path) -> Callable[[Iterator[StoredResult], str, Path], int]:
    """The writer of a file's format.

    Raises:
        UserError: the ending names no known format.
    """
    writers = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix.lower() not in writers:
        known = ", ".join(writers)
        raise UserError(f"Cannot tell the format of {path.name!r}: use one of {known}.", param="output")
    return writers[path.suffix.lower()]


def _write_jsonl(results: Iterator[StoredResult], job_id: str, path: Path) -> int:
    count = 0
    with path.open("wb", buffering=1 << 20) as file:
        for count, result in enumerate(results, start=1):  # noqa: B007
            file.write(output_line(job_id, result))
    return count


def _write_csv(results: Iterator[StoredResult], _job_id: str, path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for count, result in enumerate(results, start=1):  # noqa: B007
            rows.writerow(_formula_safe(value) for value in _row(result))
    return count


def _write_parquet(results: Iterator[StoredResult], _job_id: str, path: Path) -> int:
    # Loads in half a second: only those who export Parquet pay.
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = {"status_code", "input_tokens", "output_tokens", "duration_ms"}
    schema = pa.schema([(name, pa.int64() if name in numbers else pa.string()) for name in COLUMNS])
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _grouped(results):
            count += len(rows)
            columns = [list(column) for column in zip(*rows, strict=True)]
            writer.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True)), schema=schema))
    return count


def _grouped(results: Iterator[StoredResult]) -> Iterator[list[tuple[Any, ...]]]:
    rows: list[tuple[Any, ...]] = []
    for result in results:
        rows.append(_row(result))
        if len(rows) == ROW_GROUP_ROWS:
            yield rows
            rows = []
    if rows:
        yield rows


def _row(result: StoredResult) -> tuple[Any, ...]:
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


def _formula_safe(value: Any) -> Any:
    """A cell that a spreadsheet will not run: text that would start a formula gets a leading quote."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return value
