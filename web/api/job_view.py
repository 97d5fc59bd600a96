"""A job as the job API shows it."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from flask import url_for
from pydantic import JsonValue
from sqlalchemy import select

from tasks.database import Database
from tasks.errors import LineFault
from tasks.faults import DATABASE_AWAY
from tasks.figures import rate, tally
from tasks.files import result_file_id
from tasks.tables import File, Job, JobKind, JobStatus, Lane, ResultSet, TallySubject
from web.api.answers import Answer, moment


class Counts(Answer):
    """Requests of a job by their result."""

    total: int
    """Zero until the input has been read to its end."""
    completed: int
    failed: int


class Usage(Answer):
    """Tokens that the job's requests took."""

    input_tokens: int
    cached_tokens: int
    """Input tokens that the engine had computed before."""
    output_tokens: int
    reasoning_tokens: int
    total_tokens: int


class Fault(Answer):
    """One thing wrong with an input."""

    code: str
    message: str
    line: int | None
    """Line of the file, or row of a Parquet file, from 1."""
    param: str | None


class InputFile(Answer):
    """The file that a job reads."""

    id: str
    filename: str
    bytes: int


class Links(Answer):
    """Where to go from this job."""

    self: str
    results: str
    download: str
    events: str


class JobView(Answer):
    """A job."""

    id: str
    status: JobStatus
    kind: JobKind
    parent_id: str | None
    """The job that this one runs again in part."""
    model: str | None
    """Null until the first line of a file that names it has been read."""
    endpoint: str
    priority: Lane
    counts: Counts
    progress: float
    """Share of its requests that have a result, 0 to 1."""
    read_share: float
    """Share of its input that has been read and checked, 0 to 1."""
    requests_per_s: float
    """Over the last seconds, or over the whole run once it has ended."""
    tokens_per_s: float
    """Input and output tokens."""
    seconds_left: float | None
    """To its end at this rate; null when that cannot be said."""
    estimated_tokens: int
    usage: Usage
    failures: dict[str, int]
    """Failed requests by status or error code."""
    errors: list[Fault]
    """Why the input was refused."""
    metadata: dict[str, JsonValue] | None
    input_file: InputFile | None
    output_file_id: str | None
    error_file_id: str | None
    created_at: datetime
    started_at: datetime | None
    deadline: datetime
    finalizing_at: datetime | None
    cancelling_at: datetime | None
    ended_at: datetime | None
    links: Links


def show_job(database: Database, job: Job) -> JobView:
    """The job with its figures as they are now."""
    return show_jobs(database, [job])[0]


def show_accepted(database: Database, job: Job) -> JobView:
    """A job that was made a moment ago: it is answered, even if the database goes away in between."""
    try:
        return show_job(database, job)
    except DATABASE_AWAY:
        return _show(database, job, None)


def show_jobs(database: Database, jobs: Sequence[Job]) -> list[JobView]:
    """Several jobs, their files read together."""
    files = _files_of(database, jobs)
    return [_show(database, job, files.get(job.input_file_id or "")) for job in jobs]


def show_faults(faults: Iterable[LineFault]) -> list[Fault]:
    """Faults of an input."""
    return [
        Fault(code=fault.code, message=fault.message, line=fault.line, param=fault.param) for fault in faults
    ]


def _files_of(database: Database, jobs: Iterable[Job]) -> dict[str, File]:
    ids = {job.input_file_id for job in jobs if job.input_file_id is not None}
    with database.read() as session:
        return {file.id: file for file in session.scalars(select(File).where(File.id.in_(ids)))}


def _show(database: Database, job: Job, file: File | None) -> JobView:
    speed = rate(database, job)
    done = job.completed + job.failed
    return JobView(
        id=job.id,
        status=JobStatus(job.status),
        kind=JobKind(job.kind),
        parent_id=job.parent_id,
        model=job.model,
        endpoint=job.endpoint,
        priority=Lane(job.lane),
        counts=Counts(total=job.total, completed=job.completed, failed=job.failed),
        progress=done / job.total if job.total else 0.0,
        read_share=_read_share(job, file),
        requests_per_s=round(speed.requests_per_s, 3),
        tokens_per_s=round(speed.tokens_per_s, 3),
        seconds_left=None if speed.left_s is None else round(speed.left_s, 1),
        estimated_tokens=job.estimated_tokens,
        usage=Usage(
            input_tokens=job.input_tokens,
            cached_tokens=job.cached_tokens,
            output_tokens=job.output_tokens,
            reasoning_tokens=job.reasoning_tokens,
            total_tokens=job.input_tokens + job.output_tokens,
        ),
        failures=tally(database, job.id, TallySubject.FAILURE) if job.failed else {},
        errors=show_faults(LineFault(**fault) for fault in job.errors or []),
        metadata=job.job_metadata,
        input_file=None if file is None else InputFile(id=file.id, filename=file.filename, bytes=file.bytes),
        output_file_id=result_file_id(job, ResultSet.OUTPUT),
        error_file_id=result_file_id(job, ResultSet.ERRORS),
        created_at=_moment(job.created_ms),
        started_at=moment(job.in_progress_ms),
        deadline=_moment(job.deadline_ms),
        finalizing_at=moment(job.finalizing_ms),
        cancelling_at=moment(job.cancelling_ms),
        ended_at=moment(job.completed_ms or job.failed_ms or job.expired_ms or job.cancelled_ms),
        links=_links(job.id),
    )


def _moment(epoch_ms: int) -> datetime:
    at = moment(epoch_ms)
    assert at is not None
    return at


def _read_share(job: Job, file: File | None) -> float:
    if job.in_progress_ms is not None:
        return 1.0
    return min(1.0, job.intake_bytes / file.bytes) if file is not None and file.bytes else 0.0


def _links(job_id: str) -> Links:
    return Links(
        self=url_for("jobs.show", job_id=job_id),
        results=url_for("results.list_results", job_id=job_id),
        download=url_for("results.download", job_id=job_id),
        events=url_for("events.watch", job_id=job_id),
    )
