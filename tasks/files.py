"""Files as their owner sees them: uploads in storage, and results that are read as if they were files."""

from collections.abc import Iterator
from dataclasses import dataclass

import structlog
from sqlalchemy import ColumnElement, and_, or_, select, update

from tasks.audit import audit
from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import Conflict, NotFound
from tasks.faults import MACHINE_FAULTS
from tasks.ids import job_of_result_file
from tasks.ids import result_file_id as id_of_results
from tasks.jobs import get_job, result_file
from tasks.results import iter_results, output_line
from tasks.tables import FINAL_STATUSES, File, Job, JobKind, ResultSet

log = structlog.get_logger()

KNOWN_PURPOSES = frozenset({"batch", "user_data", "assistants", "fine-tune", "vision"})
"""OpenAI's purposes of uploads. Only those below can be the input of a job."""

BATCH_PURPOSES = frozenset({"batch"})
ROWS_PURPOSES = frozenset({"batch", "user_data"})

CONTENT_BLOCK_BYTES = 1 << 18
"""Lines are sent together: one write for each costs more than making them."""


@dataclass(frozen=True)
class FileContent:
    """What a file holds, as a stream."""

    file: File
    blocks: Iterator[bytes]
    size_bytes: int | None
    """Null while it still grows."""
    complete: bool
    """False for the results of a job that still runs."""


def is_visible() -> ColumnElement[bool]:
    """Neither deleted nor past its date."""
    return File.deleted_ms.is_(None) & or_(File.expires_ms.is_(None), File.expires_ms > now_ms())


def result_file_id(job: Job, which: ResultSet) -> str | None:
    """The id of a job's output or error file; null as long as it would be empty."""
    count = job.completed if which is ResultSet.OUTPUT else job.failed
    return id_of_results(job.id, which) if count and job.kind != JobKind.SINGLE else None


def get_file(database: Database, file_id: str, tenant: str) -> File:
    """A file of this tenant; results are files while their job still runs.

    Raises:
        NotFound: there is none, or no longer.
    """
    # In this order: a job that ends in between has left a file of its own.
    return _growing_file(database, file_id, tenant) or _kept_file(database, file_id, tenant)


def _kept_file(database: Database, file_id: str, tenant: str) -> File:
    with database.read() as session:
        file = session.scalars(
            select(File).where(File.id == file_id, File.tenant == tenant, is_visible())
        ).one_or_none()
    if file is None:
        raise NotFound("file", file_id)
    return file


def _growing_file(database: Database, file_id: str, tenant: str) -> File | None:
    named = job_of_result_file(file_id)
    if named is None:
        return None
    job_id, which = named
    try:
        job = get_job(database, job_id, tenant)
    except NotFound:
        return None
    if job.status in FINAL_STATUSES or result_file_id(job, which) is None or job.in_progress_ms is None:
        return None
    size = job.output_bytes if which is ResultSet.OUTPUT else job.error_bytes
    file = result_file(job, which, size, job.in_progress_ms)
    file.expires_ms = None  # its time counts from the job's end
    return file


def open_content(backends: Backends, file_id: str, tenant: str) -> FileContent:
    """A file's bytes, in bounded memory.

    Raises:
        NotFound: there is no such file.
    """
    growing = _growing_file(backends.database, file_id, tenant)
    file = growing or _kept_file(backends.database, file_id, tenant)
    named = job_of_result_file(file.id)
    if named is None:
        assert file.storage_key is not None
        return FileContent(file, backends.storage.stream(file.storage_key), file.bytes, complete=True)
    job_id, which = named
    lines = _result_blocks(backends.database, job_id, which)
    # As it was when its size was read: the job may have ended since.
    return FileContent(file, lines, file.bytes if growing is None else None, complete=growing is None)


def _result_blocks(database: Database, job_id: str, which: ResultSet) -> Iterator[bytes]:
    block = bytearray()
    for result in iter_results(database, job_id, which):
        block += output_line(job_id, result)
        if len(block) >= CONTENT_BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def delete_file(backends: Backends, file_id: str, tenant: str) -> None:
    """Make a file disappear. The bytes of an input stay until no job needs them.

    Raises:
        NotFound: there is no such file.
        Conflict: it is the result of a job that still runs.
    """
    if _growing_file(backends.database, file_id, tenant) is not None:
        raise Conflict("The job of this file still runs: cancel it, or wait.", code="file_in_use")
    with backends.database.write() as session:
        deleted = session.execute(
            update(File)
            .where(File.id == file_id, File.tenant == tenant, is_visible())
            .values(deleted_ms=now_ms())
            .returning(File.id)
        ).one_or_none()
        if deleted is None:
            raise NotFound("file", file_id)
        audit(session, tenant, "file.deleted", file_id)


def expendable_files() -> ColumnElement[bool]:
    """Deleted and expired files whose bytes are there still, and that no job needs any more."""
    running = select(Job.id).where(Job.input_file_id == File.id, Job.status.not_in(FINAL_STATUSES)).exists()
    return and_(File.storage_key.is_not(None), ~is_visible(), ~running)


def purge_files(backends: Backends) -> int:
    """Free the bytes of files that are expendable; returns how many files."""
    with backends.database.read() as session:
        gone = session.execute(select(File.id, File.storage_key).where(expendable_files())).all()
    freed = 0
    for file_id, storage_key in gone:
        try:
            _free(backends, file_id, storage_key)
            freed += 1
        except MACHINE_FAULTS as error:
            # One file's trouble must not keep the others waiting; it is tried again at the next pass.
            log.error("purge_failed", file=file_id, error=repr(error))
    return freed


def _free(backends: Backends, file_id: str, storage_key: str | None) -> None:
    with backends.database.read() as session:
        plans = session.execute(
            select(Job.id, Job.planned_key).where(Job.input_file_id == file_id, Job.planned_key.is_not(None))
        ).all()
    for key in [storage_key, *(planned_key for _, planned_key in plans)]:
        assert key is not None
        backends.storage.delete(key)
    with backends.database.write() as session:
        session.execute(
            update(Job).where(Job.id.in_([job_id for job_id, _ in plans])).values(planned_key=None)
        )
        session.execute(update(File).where(File.id == file_id).values(storage_key=None))
