"""Output and error files on every way to a job's end, and inputs that go before their jobs do."""

import pytest
from sqlalchemy import select, update

from tasks.backends import Backends
from tasks.chunks import record_results, release_chunk
from tasks.errors import Conflict, NotFound
from tasks.files import delete_file, get_file, open_content, purge_files, result_file_id
from tasks.finalise import expire_overdue, settle
from tasks.jobs import cancel_job, get_job
from tasks.listing import list_files
from tasks.storage import StoredObjectMissing
from tasks.tables import File, JobStatus, ResultSet
from tests.samples import answer, change_job, leased, started_job


def record_some(backends: Backends, job_id: str, *, finish: bool) -> None:
    """One good answer with odd characters, one refusal; of three requests."""
    lease = leased(backends, job_id)
    outcomes = [answer(0, body='{"é":"\u2028"}'.encode()), answer(1, status_code=422)]
    if finish:
        outcomes.append(answer(2, status_code=None, error_code="engine_crash"))
    record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=finish)
    if not finish:
        release_chunk(backends.database, lease, attempts=lease.attempt)


@pytest.mark.parametrize("ending", [JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.EXPIRED])
def test_every_end_shows_files_of_the_right_owner_size_and_date(
    backends: Backends, ending: JobStatus
) -> None:
    job_id = started_job(backends, 3, tenant="local", output_expires_s=3_600)
    record_some(backends, job_id, finish=ending is JobStatus.COMPLETED)
    if ending is JobStatus.CANCELLED:
        cancel_job(backends.database, job_id)
    elif ending is JobStatus.EXPIRED:
        change_job(backends, job_id, deadline_ms=1)
        expire_overdue(backends.database)
    assert settle(backends, job_id) == ending

    job = get_job(backends.database, job_id)
    for which, results in ((ResultSet.OUTPUT, 1), (ResultSet.ERRORS, 2)):
        file_id = result_file_id(job, which)
        assert file_id is not None
        opened = open_content(backends, file_id, "local")
        content = b"".join(opened.blocks)
        assert opened.complete
        assert opened.size_bytes == opened.file.bytes == len(content)
        assert content.count(b"\n") == results
        assert (opened.file.tenant, opened.file.purpose) == ("local", "batch_output")
        ended_ms = getattr(job, f"{ending}_ms")
        assert opened.file.expires_ms == opened.file.created_ms + 3_600_000
        assert abs(opened.file.created_ms - ended_ms) < 2_000
        with pytest.raises(NotFound):
            get_file(backends.database, file_id, "stranger")
    listed = list_files(backends.database, "local", purpose="batch_output").items
    assert {file.id for file in listed} == {f"file-{job_id[6:]}-output", f"file-{job_id[6:]}-errors"}


def test_results_of_a_running_job_are_a_growing_file_that_stays(backends: Backends) -> None:
    job_id = started_job(backends, 3)
    job = get_job(backends.database, job_id)
    assert result_file_id(job, ResultSet.OUTPUT) is None
    with pytest.raises(NotFound):
        get_file(backends.database, f"file-{job_id[6:]}-output", "local")
    record_some(backends, job_id, finish=False)
    opened = open_content(backends, f"file-{job_id[6:]}-output", "local")
    assert (opened.complete, opened.size_bytes) == (False, None)
    content = b"".join(opened.blocks)
    assert get_file(backends.database, opened.file.id, "local").bytes == len(content)
    with pytest.raises(Conflict, match="still runs"):
        delete_file(backends, opened.file.id, "local")
    assert list_files(backends.database, "local", purpose="batch_output").items == []


def test_a_deleted_output_is_gone_while_its_job_keeps_the_id(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    job_id = started_job(backends, 3)
    record_some(backends, job_id, finish=True)
    settle(backends, job_id)
    file_id = result_file_id(get_job(backends.database, job_id), ResultSet.OUTPUT)
    assert file_id is not None
    delete_file(backends, file_id, "local")
    with pytest.raises(NotFound):
        open_content(backends, file_id, "local")
    with pytest.raises(NotFound):
        delete_file(backends, file_id, "local")
    assert result_file_id(get_job(backends.database, job_id), ResultSet.OUTPUT) == file_id


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_an_input_that_goes_early_is_kept_for_its_job_and_then_freed(backends: Backends, how: str) -> None:
    job_id = started_job(backends, 3)
    job = get_job(backends.database, job_id)
    assert job.input_file_id is not None
    with backends.database.read() as session:
        key = session.scalars(select(File.storage_key).where(File.id == job.input_file_id)).one()
    assert key is not None
    if how == "deleted":
        delete_file(backends, job.input_file_id, "local")
    else:
        with backends.database.write() as session:
            session.execute(update(File).where(File.id == job.input_file_id).values(expires_ms=1))
    with pytest.raises(NotFound):
        get_file(backends.database, job.input_file_id, "local")

    assert purge_files(backends) == 0
    assert backends.storage.size(key) > 0
    record_some(backends, job_id, finish=True)
    settle(backends, job_id)
    assert purge_files(backends) == 1
    assert purge_files(backends) == 0
    for gone in (key, job.planned_key):
        assert gone is not None
        with pytest.raises(StoredObjectMissing):
            backends.storage.size(gone)
    assert get_job(backends.database, job_id).planned_key is None
