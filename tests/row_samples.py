"""Jobs from rows to test with, made by the project's own verbs."""

import csv
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.export import ExportFormat, open_export
from tasks.file_sink import store_file
from tasks.intake import run_intake
from tasks.jobs import get_job
from tasks.outcomes import Outcome
from tasks.planned_file import PlannedRequest, read_frame
from tasks.rows import RowsFormat, RowsSpec
from tasks.submission import JobRequest, create_job
from tasks.tables import Job, JobKind, JobStatus, ResultSet
from tests.samples import ENDPOINT, answer, chunks_of, leased, outcomes_of

CSV_ROWS = b'id,prose,note\nx-1,"Gr\xc3\xbc\xc3\x9fe,\nWelt",=1+1\nx-2,zwei,-5\nx-3,drei,\n'
"""Three rows, of which the first takes two lines."""


def spec_of(kind: RowsFormat = RowsFormat.CSV, template: str = "Say: {{ prose }}", **more: Any) -> RowsSpec:
    """How rows become requests."""
    return RowsSpec(kind, template, **more)


def asked(backends: Backends, content: bytes, spec: RowsSpec, **more: Any) -> JobRequest:
    """A submission of these rows."""
    file = store_file(backends, [content], filename=f"in.{spec.format}", purpose="user_data")
    values = {"endpoint": ENDPOINT, "model": "sim", **more}
    return JobRequest(kind=JobKind.ROWS, input_file_id=file.id, options=spec.to_options(), **values)


def taken_in(backends: Backends, request: JobRequest) -> Job:
    """The job of a submission, after its intake."""
    job = create_job(backends, request)
    run_intake(backends, job.id)
    return get_job(backends.database, job.id)


def rows_job(backends: Backends, content: bytes = CSV_ROWS, spec: RowsSpec | None = None, **more: Any) -> Job:
    """A job of good rows, in progress."""
    job = taken_in(backends, asked(backends, content, spec or spec_of(), **more))
    assert (job.status, job.errors) == (JobStatus.IN_PROGRESS, None)
    return job


def planned(backends: Backends, job: Job) -> list[PlannedRequest]:
    """The requests of a job, in the order in which they run."""
    assert job.planned_key is not None
    return [
        request
        for chunk in chunks_of(backends, job.id)
        for request in read_frame(backends.storage, job.planned_key, chunk.offset, chunk.length)
    ]


def run_chunk(
    backends: Backends, job_id: str, seq: int = 0, *, failing: frozenset[int] = frozenset(), text: str = "ok"
) -> None:
    """Answer the requests of a chunk with a text; the failing ones get a status 500."""
    lease = leased(backends, job_id, seq)
    body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    outcomes: list[Outcome] = []
    for good in outcomes_of(backends, lease):
        if good.index in failing:
            outcomes.append(answer(good.index, custom_id=good.custom_id, status_code=500, body=b"{}"))
        else:
            outcomes.append(answer(good.index, custom_id=good.custom_id, body=body))
    record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)


def downloaded(
    backends: Backends, job: Job, kind: ExportFormat, which: ResultSet = ResultSet.ALL
) -> list[dict[str, Any]]:
    """The rows of an export, as a reader of its format sees them."""
    content = b"".join(open_export(backends, job, kind, which).blocks)
    if kind is ExportFormat.CSV:
        return list(csv.DictReader(io.StringIO(content.decode(), newline="")))
    if kind is ExportFormat.JSONL:
        return [json.loads(line) for line in content.splitlines()]
    return list(pq.read_table(io.BytesIO(content)).to_pylist())


def parquet_of(columns: dict[str, Any]) -> bytes:
    """A Parquet file of these columns."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()
