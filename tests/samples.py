"""Inputs, jobs and results to test with, made by the project's own verbs."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

from tasks.backends import Backends
from tasks.chunks import Lease, lease_chunk
from tasks.clock import now_ms
from tasks.file_sink import store_file
from tasks.intake import run_intake
from tasks.jobs import get_job
from tasks.outcomes import Outcome
from tasks.planned_file import read_frame
from tasks.results import StoredResult, iter_results
from tasks.submission import JobRequest, create_job
from tasks.tables import Chunk, ChunkState, Job, JobStatus, Worker

ENDPOINT = "/v1/chat/completions"


def request_line(custom_id: str, *, model: str | None = "sim", prompt: str = "Hello", **body: Any) -> bytes:
    """One good line of an input file, without its newline."""
    named = {} if model is None else {"model": model}
    message = {"role": "user", "content": prompt}
    return json.dumps(
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": ENDPOINT,
            "body": {**named, "messages": [message], **body},
        }
    ).encode()


def good_input(count: int, **line: Any) -> bytes:
    """An input file of `count` requests, r0 and up."""
    return b"".join(request_line(f"r{number}", **line) + b"\n" for number in range(count))


def with_settings(backends: Backends, **values: object) -> Backends:
    """The same backends under other settings."""
    return replace(backends, settings=backends.settings.model_copy(update=values))


def submit(backends: Backends, content: bytes, **request: Any) -> str:
    """Store an input and create its job; returns the job's id."""
    file = store_file(backends, [content], filename="in.jsonl")
    asked = {"endpoint": ENDPOINT, "input_file_id": file.id, **request}
    return create_job(backends, JobRequest(**asked)).id


def started_job(backends: Backends, requests: int, *, per_chunk: int = 256, **request: Any) -> str:
    """A job in progress with its chunks in the database only; returns its id."""
    job_id = submit(backends, good_input(requests, model=request.get("model") or "sim"), **request)
    run_intake(with_settings(backends, chunk_requests=per_chunk), job_id)
    assert get_job(backends.database, job_id).status == JobStatus.IN_PROGRESS
    return job_id


def put_on_runway(backends: Backends, job_id: str) -> None:
    """What dispatch does in the database, without a message."""
    with backends.database.write() as session:
        session.execute(
            update(Chunk)
            .where(Chunk.job_id == job_id, Chunk.state == ChunkState.PENDING)
            .values(state=ChunkState.QUEUED, queued_ms=now_ms())
        )


def leased(backends: Backends, job_id: str, seq: int = 0, owner: str = "worker-1") -> Lease:
    """A chunk's lease, for a worker."""
    put_on_runway(backends, job_id)
    lease = lease_chunk(backends.database, job_id, seq, owner, 30)
    assert lease is not None
    return lease


def change_job(backends: Backends, job_id: str, **values: Any) -> None:
    """Put values straight into the job's row."""
    with backends.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(**values))


def change_chunks(backends: Backends, job_id: str, **values: Any) -> None:
    """Put values straight into all rows of the job's chunks."""
    with backends.database.write() as session:
        session.execute(update(Chunk).where(Chunk.job_id == job_id).values(**values))


def chunks_of(backends: Backends, job_id: str) -> list[Chunk]:
    """The job's chunks in order."""
    with backends.database.read() as session:
        return list(session.scalars(select(Chunk).where(Chunk.job_id == job_id).order_by(Chunk.seq)))


def outcomes_of(backends: Backends, lease: Lease, indices: Iterable[int] | None = None) -> list[Outcome]:
    """Good answers for requests of a leased chunk, or for all of them."""
    wanted = None if indices is None else set(indices)
    return [
        answer(request.index, custom_id=request.custom_id)
        for request in read_frame(backends.storage, lease.planned_key, lease.offset, lease.length)
        if wanted is None or request.index in wanted
    ]


def answer(
    index: int, *, custom_id: str | None = None, status_code: int | None = 200, **more: Any
) -> Outcome:
    """One outcome; its body names the request."""
    body = b'{"of":%d}' % index if status_code is not None else None
    return Outcome(index, custom_id or f"r{index}", status_code, more.pop("body", body), **more)


def results_of(backends: Backends, job_id: str) -> list[StoredResult]:
    """The job's results in input order."""
    return list(iter_results(backends.database, job_id))


def alive(backends: Backends, name: str, silent_ms: int, *, model: str = "sim", started_ms: int = 1) -> None:
    """A worker whose last sign of life came so long ago."""
    with backends.database.write() as session:
        now = session.execute(select(now_ms())).scalar_one()
        session.add(
            Worker(
                id=name,
                model=model,
                host="h",
                pid=1,
                devices="",
                started_ms=started_ms,
                heartbeat_ms=now - silent_ms,
                figures={},
            )
        )
