"""A job's results in one piece: as a stream, or written to a file."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from errno import EISDIR
from pathlib import Path

from tasks.backends import Backends
from tasks.errors import UserError
from tasks.export_formats import csv_blocks, jsonl_blocks, parquet_blocks
from tasks.result_rows import input_table, joined
from tasks.results import iter_results
from tasks.tables import Job, ResultSet


class ExportFormat(StrEnum):
    """How results are written."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


MEDIA_TYPES = {
    ExportFormat.JSONL: "application/jsonl",
    ExportFormat.CSV: "text/csv",
    ExportFormat.PARQUET: "application/vnd.apache.parquet",
}


@dataclass(frozen=True)
class Export:
    """Results as a stream."""

    blocks: Iterator[bytes]
    media_type: str
    filename: str
    """A good name for it, without a folder."""


def open_export(backends: Backends, job: Job, kind: ExportFormat, which: ResultSet = ResultSet.ALL) -> Export:
    """The results that are there now, in input order and bounded memory.

    Those of a job from rows stand beside the columns of their rows, as long as its input is kept.
    """
    table = input_table(backends, job)
    rows = joined(iter_results(backends.database, job.id, which), table)
    match kind:
        case ExportFormat.JSONL:
            blocks = jsonl_blocks(rows, table, job.id)
        case ExportFormat.CSV:
            blocks = csv_blocks(rows, table)
        case ExportFormat.PARQUET:
            blocks = parquet_blocks(rows, table)
    part = "" if which is ResultSet.ALL else f"_{which}"
    return Export(blocks, MEDIA_TYPES[kind], f"{job.id}{part}.{kind}")


def export_results(backends: Backends, job: Job, path: Path) -> None:
    """Write all results in input order. The file appears whole or not at all.

    Raises:
        UserError: the ending names no known format, or the place cannot be written.
    """
    export = open_export(backends, job, format_of_path(path))
    partial = _partial(path)
    try:
        with partial.open("wb") as file:
            for block in export.blocks:
                file.write(block)
        partial.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def check_destination(path: Path) -> None:
    """Find out now whether results can be written there, not after a night's work; makes the folder.

    Raises:
        UserError: the ending names no known format, or the place cannot be written.
    """
    format_of_path(path)
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


def format_of_path(path: Path) -> ExportFormat:
    """The format that a file's ending names, in any case.

    Raises:
        UserError: it names no known format.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending not in list(ExportFormat):
        known = ", ".join(f".{kind}" for kind in ExportFormat)
        raise UserError(f"Cannot tell the format of {path.name!r}: use one of {known}.", param="output")
    return ExportFormat(ending)
