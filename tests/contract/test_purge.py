"""Removal: nothing of a deleted job is left, and nothing that somebody still needs goes with it."""

from typing import Any

import pytest
from sqlalchemy import func, select

from tasks import purge
from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.errors import Conflict, MachineError, NotFound
from tasks.files import delete_file, get_file, purge_files
from tasks.finalise import settle
from tasks.intake import run_intake
from tasks.jobs import delete_job, get_job
from tasks.purge import purge_jobs
from tasks.storage import Storage, StoredObjectMissing
from tasks.submission import find_resumable, rerun_job
from tasks.tables import Chunk, File, Job, JobKind, JobStatus, Progress, Result, Tally
from tests.samples import answer, change_job, leased, outcomes_of, started_job


def ended_job(backends: Backends, requests: int = 2, **request: Any) -> str:
    """A job whose first request succeeded and whose others failed; its id."""
    job_id = started_job(backends, requests, **request)
    lease = leased(backends, job_id)
    outcomes = [answer(0), *(answer(index, status_code=400) for index in range(1, requests))]
    record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)
    assert settle(backends, job_id) == JobStatus.COMPLETED
    return job_id


def input_of(backends: Backends, job_id: str) -> str:
    file_id = get_job(backends.database, job_id).input_file_id
    assert file_id is not None
    return file_id


def is_stored(backends: Backends, key: str | None) -> bool:
    assert key is not None
    try:
        return backends.storage.size(key) > 0
    except StoredObjectMissing:
        return False


def storage_key(backends: Backends, file_id: str) -> str:
    with backends.database.read() as session:
        key = session.scalars(select(File.storage_key).where(File.id == file_id)).one()
    assert key is not None
    return key


def test_nothing_of_a_deleted_job_is_left(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "RESULTS_AT_ONCE", 2)  # five results: two full steps and a part of one
    job_id, other_id = ended_job(backends, 5, owns_input=True), ended_job(backends, 1)
    planned_key = get_job(backends.database, job_id).planned_key
    input_key = storage_key(backends, input_of(backends, job_id))
    delete_job(backends.database, job_id, "local")

    assert (purge_jobs(backends), purge_files(backends)) == (1, 1)
    assert (purge_jobs(backends), purge_files(backends)) == (0, 0)
    assert not is_stored(backends, planned_key)
    assert not is_stored(backends, input_key)
    with backends.database.read() as session:
        for table in (Result, Chunk, Progress, Tally):
            left = session.execute(select(table.job_id, func.count()).group_by(table.job_id)).all()
            assert {row[0] for row in left} == {other_id}
        assert set(session.scalars(select(Job.id))) == {other_id}
        assert set(session.scalars(select(File.job_id).where(File.purpose == "batch_output"))) == {other_id}
    assert is_stored(backends, get_job(backends.database, other_id).planned_key)


def test_an_input_that_a_client_uploaded_outlives_its_job(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    job_id = ended_job(backends)
    file_id = input_of(backends, job_id)
    delete_job(backends.database, job_id, "local")
    assert (purge_jobs(backends), purge_files(backends)) == (1, 0)
    assert is_stored(backends, storage_key(backends, file_id))
    assert get_file(backends.database, file_id, "local").id == file_id


def test_a_jobs_own_input_passes_to_its_reruns_and_goes_with_the_last(backends: Backends) -> None:
    job_id = ended_job(backends, owns_input=True)
    file_id = input_of(backends, job_id)
    key = storage_key(backends, file_id)
    reruns = []
    for _ in range(2):
        rerun = rerun_job(backends, "local", job_id)
        run_intake(backends, rerun.id)
        lease = leased(backends, rerun.id)
        record_results(
            backends.database, lease, outcomes_of(backends, lease), worker="w", lease_s=30, finish=True
        )
        settle(backends, rerun.id)
        reruns.append(rerun.id)
    for gone in (job_id, reruns[0]):
        delete_job(backends.database, gone, "local")
        assert (purge_jobs(backends), purge_files(backends)) == (1, 0)
        assert is_stored(backends, key)
    assert get_file(backends.database, file_id, "local").job_id == reruns[1]
    assert is_stored(backends, get_job(backends.database, reruns[1]).planned_key)
    delete_job(backends.database, reruns[1], "local")
    assert (purge_jobs(backends), purge_files(backends)) == (1, 1)
    assert not is_stored(backends, key)


@pytest.mark.parametrize("status", list(JobStatus))
def test_a_job_is_deleted_once_it_has_ended_and_not_before(
    sqlite_backends: Backends, status: JobStatus
) -> None:
    backends = sqlite_backends
    job_id = started_job(backends, 1)
    change_job(backends, job_id, status=status, resume_key="again")
    with pytest.raises(NotFound):
        delete_job(backends.database, job_id, "stranger")
    if status not in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.EXPIRED, JobStatus.CANCELLED):
        with pytest.raises(Conflict) as refused:
            delete_job(backends.database, job_id, "local")
        assert refused.value.code == "job_not_ended"
        assert get_job(backends.database, job_id, "local").id == job_id
        return
    delete_job(backends.database, job_id, "local")
    with pytest.raises(NotFound):
        get_job(backends.database, job_id, "local")
    with pytest.raises(NotFound):
        delete_job(backends.database, job_id, "local")
    # The command that made it starts anew.
    assert find_resumable(backends.database, "again") is None


def test_what_cannot_be_removed_does_not_keep_the_rest(
    sqlite_backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = sqlite_backends
    stuck, other = ended_job(backends), ended_job(backends)
    stuck_keys = {
        get_job(backends.database, stuck).planned_key,
        storage_key(backends, input_of(backends, stuck)),
    }
    for job_id in (stuck, other):
        delete_file(backends, input_of(backends, job_id), "local")
    free = Storage.delete

    def fails(storage: Storage, key: str) -> None:
        if key in stuck_keys:
            raise MachineError("the storage refuses")
        free(storage, key)

    monkeypatch.setattr(Storage, "delete", fails)
    assert purge_files(backends) == 1
    for job_id in (stuck, other):
        delete_job(backends.database, job_id, "local")
    assert purge_jobs(backends) == 1
    assert get_job(backends.database, stuck).id == stuck
    monkeypatch.undo()
    assert (purge_jobs(backends), purge_files(backends)) == (1, 1)


def test_a_single_request_that_nobody_waits_for_any_more_goes_by_itself(backends: Backends) -> None:
    forgotten, waited_for, running, batch = (started_job(backends, 1) for _ in range(4))
    change_job(backends, running, kind=JobKind.SINGLE, deadline_ms=1)
    change_job(backends, batch, status=JobStatus.EXPIRED, deadline_ms=1)
    for job_id, late_ms in ((forgotten, purge.SINGLE_KEPT_MS + 1_000), (waited_for, 1_000)):
        now = get_job(backends.database, job_id).created_ms
        change_job(backends, job_id, kind=JobKind.SINGLE, status=JobStatus.EXPIRED, deadline_ms=now - late_ms)
    assert purge_jobs(backends) == 1
    with backends.database.read() as session:
        assert set(session.scalars(select(Job.id))) == {waited_for, running, batch}
