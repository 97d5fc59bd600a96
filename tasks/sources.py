"""Where a job's requests come from: request lines, the rows of a table, or an earlier job."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import select

from tasks.backends import Backends
from tasks.database import Database
from tasks.errors import LineFault, NotFound
from tasks.jobs import get_job
from tasks.lines import read_lines
from tasks.planned_file import PlannedRequest, read_frame
from tasks.row_readers import BrokenTable, open_table, plain
from tasks.rows import RowsFormat, RowsSpec
from tasks.storage import StoredObjectMissing
from tasks.tables import Chunk, File, Job, JobKind, Result
from tasks.template import CannotRender, PromptTemplate
from tasks.template_filters import text_of
from tasks.validation import Validator, ValidLine, custom_id_fault, output_limit

Read = Callable[[int], None]
"""Called with the number of bytes, each time some were read."""

SIGN_OF_LIFE_ROWS = 100
"""Rows after which `Read` is called: a long template makes minutes of work of one block of short rows."""

Item = tuple[int, int | None, ValidLine | list[LineFault]]
"""Line number from 1, the request's index, and the request there or what is wrong with it. The index is null
where it is the number of good requests before it; only a rerun has gaps."""


@dataclass(frozen=True, kw_only=True)
class JobInput:
    """What a job is read from, and as what."""

    kind: JobKind
    endpoint: str
    model: str | None
    storage_key: str
    options: dict[str, Any]
    parent_id: str | None


def input_of(database: Database, job_id: str) -> JobInput:
    """What this job is read from."""
    with database.read() as session:
        job = session.get_one(Job, job_id)
        storage_key = session.scalars(select(File.storage_key).where(File.id == job.input_file_id)).one()
    return JobInput(
        kind=JobKind(job.kind),
        endpoint=job.endpoint,
        model=job.model,
        # A name that is not in storage, once the bytes are gone: whoever reads them finds out.
        storage_key=storage_key or job_id,
        options=job.options,
        parent_id=job.parent_id,
    )


class Source(Protocol):
    """One input that is being read."""

    @property
    def model(self) -> str | None:
        """The job's model; of request lines that alone name it, null until the first good one."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Of rows, known once the first item has been read; empty for all else."""

    def items(self) -> Iterator[Item]:
        """Every request or fault, in input order."""


def open_source(backends: Backends, given: JobInput, read: Read) -> Source:
    """The source of this kind of job."""
    match given.kind:
        case JobKind.ROWS:
            return _Rows(backends, given, read)
        case JobKind.RERUN:
            return _Rerun(backends, given, read)
        case _:
            return _RequestLines(backends, given, read)


def _blocks(backends: Backends, given: JobInput, read: Read) -> Iterator[bytes]:
    for block in backends.storage.stream(given.storage_key):
        yield block
        read(len(block))


class _RequestLines:
    """A file in the format of OpenAI's batches."""

    columns: tuple[str, ...] = ()

    def __init__(self, backends: Backends, given: JobInput, read: Read) -> None:
        self._lines = read_lines(_blocks(backends, given, read), backends.settings.max_line_bytes)
        self._validator = Validator(given.endpoint, given.model, backends.settings.catalogue.__contains__)

    @property
    def model(self) -> str | None:
        return self._validator.model

    def items(self) -> Iterator[Item]:
        check = self._validator.check
        return ((number, None, check(number, line)) for number, line in self._lines)


class _Rows:
    """A table whose rows fill in a template."""

    columns: tuple[str, ...] = ()

    def __init__(self, backends: Backends, given: JobInput, read: Read) -> None:
        assert given.model is not None
        self.model = given.model
        self._backends = backends
        self._given = given
        self._read = read
        self._spec = RowsSpec.from_options(given.options)
        self._template = PromptTemplate(self._spec.template)
        self._needed = self._template.columns
        if self._spec.id_column is not None:
            self._needed |= {self._spec.id_column}
        self._output_limit = output_limit(self._spec.body)
        self._longest = backends.settings.max_line_bytes

    def items(self) -> Iterator[Item]:
        given, spec = self._given, self._spec
        blocks = _blocks(self._backends, given, self._read)
        try:
            table = open_table(
                self._backends.storage, given.storage_key, spec.format, blocks, self._longest, self._read
            )
        except BrokenTable as broken:
            yield broken.fault.line or 1, None, [broken.fault]
            return
        self.columns = table.columns
        if spec.format is not RowsFormat.JSONL and (missing := self._missing(table.columns, 1)):
            # The same for every row.
            yield 1, None, missing
            return
        for place, (number, row) in enumerate(table.rows, start=1):
            if place % SIGN_OF_LIFE_ROWS == 0:
                self._read(0)
            yield number, None, [row] if isinstance(row, LineFault) else self._request(number, place, row)

    def _missing(self, columns: tuple[str, ...], number: int) -> list[LineFault]:
        named = dict.fromkeys(self._template.missing(columns), "template")
        if self._spec.id_column is not None and self._spec.id_column not in columns:
            named[self._spec.id_column] = "id_column"
        there = ", ".join(repr(column) for column in columns[:20]) or "none"
        return [
            LineFault(
                "missing_column", f"'{param}' names the column {column!r}; there are: {there}.", number, param
            )
            for column, param in named.items()
        ]

    def _request(self, number: int, place: int, row: dict[str, Any]) -> ValidLine | list[LineFault]:
        spec = self._spec
        if spec.format is RowsFormat.PARQUET:
            row = plain(row)
        elif spec.format is RowsFormat.JSONL and not self._needed <= row.keys():
            return self._missing(tuple(row), number)
        custom_id = f"row-{place}" if spec.id_column is None else text_of(row[spec.id_column])
        if message := custom_id_fault(custom_id):
            return [LineFault("invalid_custom_id", message, number, spec.id_column)]
        try:
            prompt = self._template.render(row, self._longest)
        except CannotRender as error:
            return [LineFault("invalid_row", str(error), number, "template")]
        body = spec.body_of(self._given.endpoint, self.model, prompt)
        if len(body) > self._longest:
            message = f"The request is longer than {self._longest} bytes (max_line_bytes)."
            return [LineFault("line_too_long", message, number)]
        return ValidLine(custom_id, body, self._output_limit)


class _Rerun:
    """The requests of an earlier job that did not succeed, under the indices and ids that they had there."""

    columns: tuple[str, ...] = ()

    def __init__(self, backends: Backends, given: JobInput, read: Read) -> None:
        assert given.parent_id is not None
        self.model = given.model
        self._backends = backends
        self._parent_id = given.parent_id
        self._read = read

    def items(self) -> Iterator[Item]:
        try:
            planned_key = get_job(self._backends.database, self._parent_id).planned_key
        except NotFound:
            planned_key = None
        if planned_key is None:
            raise StoredObjectMissing(f"the plan of {self._parent_id} is not in storage")
        for offset, length in self._chunks():
            requests = read_frame(self._backends.storage, planned_key, offset, length)
            succeeded = self._succeeded(requests)
            for request in requests:
                if request.index not in succeeded:
                    line = ValidLine(request.custom_id, request.body, output_limit(request.body))
                    yield request.index + 1, request.index, line
            self._read(length)

    def _chunks(self) -> list[tuple[int, int]]:
        with self._backends.database.read() as session:
            rows = session.execute(
                select(Chunk.offset, Chunk.length).where(Chunk.job_id == self._parent_id).order_by(Chunk.seq)
            )
            return [(row.offset, row.length) for row in rows]

    def _succeeded(self, requests: list[PlannedRequest]) -> set[int]:
        first = min(request.index for request in requests)
        last = max(request.index for request in requests)
        with self._backends.database.read() as session:
            return set(
                session.scalars(
                    select(Result.index).where(
                        Result.job_id == self._parent_id,
                        Result.index.between(first, last),
                        Result.status_code == 200,
                    )
                )
            )
