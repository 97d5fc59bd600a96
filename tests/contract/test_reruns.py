"""Running again what did not succeed, as a new job that is linked to the first."""

import pytest
from sqlalchemy import update

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.errors import Conflict, NotFound
from tasks.export import ExportFormat
from tasks.files import delete_file
from tasks.finalise import expire_overdue, settle
from tasks.intake import run_intake
from tasks.jobs import cancel_job, delete_job, get_job
from tasks.prompts import prompt_text
from tasks.purge import purge_jobs
from tasks.submission import rerun_job
from tasks.tables import Job, JobKind, JobStatus, Lane
from tests.row_samples import downloaded, planned, rows_job, run_chunk, spec_of
from tests.samples import (
    change_job,
    chunks_of,
    leased,
    outcomes_of,
    results_of,
    started_job,
    submit,
    with_settings,
)


def ended(backends: Backends, job_id: str) -> Job:
    settle(backends, job_id)
    return get_job(backends.database, job_id)


def rerun_of(backends: Backends, job_id: str) -> Job:
    """A rerun, after its intake."""
    job = rerun_job(backends, "local", job_id)
    run_intake(backends, job.id)
    return get_job(backends.database, job.id)


def indices(backends: Backends, job: Job) -> list[int]:
    return [request.index for request in planned(backends, job)]


def partly_failed(backends: Backends, failing: set[int], *, of: int = 7) -> str:
    """An ended job in chunks of three."""
    job_id = started_job(backends, of, per_chunk=3)
    for chunk in chunks_of(backends, job_id):
        run_chunk(backends, job_id, chunk.seq, failing=frozenset(failing))
    assert ended(backends, job_id).status == JobStatus.COMPLETED
    return job_id


def test_a_rerun_has_the_requests_that_failed_under_their_index_and_id(backends: Backends) -> None:
    parent_id = partly_failed(backends, {1, 2, 6})
    parent = get_job(backends.database, parent_id)
    job = rerun_of(with_settings(backends, chunk_requests=2), parent_id)
    assert (job.kind, job.parent_id, job.status) == (JobKind.RERUN, parent_id, JobStatus.IN_PROGRESS)
    assert (job.total, job.model, job.endpoint, job.lane) == (3, parent.model, parent.endpoint, parent.lane)
    assert [(request.index, request.custom_id) for request in planned(backends, job)] == [
        (1, "r1"),
        (2, "r2"),
        (6, "r6"),
    ]
    before = {request.index: request.body for request in planned(backends, parent)}
    assert all(request.body == before[request.index] for request in planned(backends, job))
    for chunk in chunks_of(backends, job.id):
        run_chunk(backends, job.id, chunk.seq)
    job = ended(backends, job.id)
    assert (job.status, job.completed, job.failed) == (JobStatus.COMPLETED, 3, 0)
    assert [result.index for result in results_of(backends, job.id)] == [1, 2, 6]


def test_a_rerun_of_a_rerun_has_what_failed_there(backends: Backends) -> None:
    parent_id = partly_failed(backends, {1, 2, 6})
    first = rerun_of(backends, parent_id)
    run_chunk(backends, first.id, failing=frozenset({2, 6}))
    assert ended(backends, first.id).status == JobStatus.COMPLETED
    second = rerun_of(backends, first.id)
    assert (second.parent_id, indices(backends, second)) == (first.id, [2, 6])
    run_chunk(backends, second.id)
    assert ended(backends, second.id).completed == 2
    with pytest.raises(Conflict) as caught:
        rerun_job(backends, "local", second.id)
    assert caught.value.code == "nothing_to_rerun"


def test_what_was_cancelled_or_expired_runs_again_too(backends: Backends) -> None:
    cancelled = started_job(backends, 7, per_chunk=3)
    run_chunk(backends, cancelled, 1, failing=frozenset({4}))
    cancel_job(backends.database, cancelled)
    assert ended(backends, cancelled).status == JobStatus.CANCELLED
    assert indices(backends, rerun_of(backends, cancelled)) == [0, 1, 2, 4, 6]

    expired = started_job(backends, 4, per_chunk=3)
    lease = leased(backends, expired)
    done = outcomes_of(backends, lease, [2])
    record_results(backends.database, lease, done, worker="w", lease_s=30, finish=False)
    change_job(backends, expired, deadline_ms=1)
    expire_overdue(backends.database)
    assert ended(backends, expired).status == JobStatus.EXPIRED
    assert indices(backends, rerun_of(backends, expired)) == [0, 1, 3]


def test_a_rerun_that_is_cancelled_fills_its_gaps_only(backends: Backends) -> None:
    job = rerun_of(backends, partly_failed(backends, {1, 6}))
    cancel_job(backends.database, job.id)
    job = ended(backends, job.id)
    assert (job.status, job.total, job.failed) == (JobStatus.CANCELLED, 2, 2)
    assert [(result.index, result.error_code) for result in results_of(backends, job.id)] == [
        (1, "batch_cancelled"),
        (6, "batch_cancelled"),
    ]


@pytest.mark.parametrize("kind", list(ExportFormat))
def test_a_rerun_of_rows_is_joined_to_the_same_rows(sqlite_backends: Backends, kind: ExportFormat) -> None:
    parent = rows_job(sqlite_backends, spec=spec_of(id_column="id"))
    run_chunk(sqlite_backends, parent.id, failing=frozenset({0, 2}))
    ended(sqlite_backends, parent.id)
    job = rerun_of(sqlite_backends, parent.id)
    assert [prompt_text(request.body) for request in planned(sqlite_backends, job)] == [
        "Say: Grüße,\nWelt",
        "Say: drei",
    ]
    run_chunk(sqlite_backends, job.id, text="now")
    rows = downloaded(sqlite_backends, job, kind)
    assert [(row["id"], row["custom_id"], row["text"]) for row in rows] == [
        ("x-1", "x-1", "now"),
        ("x-3", "x-3", "now"),
    ]


def test_a_rerun_may_have_another_priority_and_window(sqlite_backends: Backends) -> None:
    parent_id = partly_failed(sqlite_backends, {0})
    job = rerun_job(sqlite_backends, "local", parent_id, lane=Lane.BULK, window_s=60)
    assert (job.lane, job.deadline_ms - job.created_ms) == (Lane.BULK, 60_000)


def test_only_ended_jobs_with_failures_can_run_again(backends: Backends) -> None:
    running = started_job(backends, 2)
    with pytest.raises(Conflict) as caught:
        rerun_job(backends, "local", running)
    assert caught.value.code == "job_not_ended"
    run_chunk(backends, running)
    ended(backends, running)
    refused = submit(backends, b"{bad")
    run_intake(backends, refused)
    for job_id in (running, refused):
        with pytest.raises(Conflict) as caught:
            rerun_job(backends, "local", job_id)
        assert caught.value.code == "nothing_to_rerun"
    with pytest.raises(NotFound):
        rerun_job(backends, "stranger", partly_failed(backends, {0}))


def test_a_job_can_run_again_after_its_input_was_deleted(backends: Backends) -> None:
    parent_id = partly_failed(backends, {0, 5})
    file_id = get_job(backends.database, parent_id).input_file_id
    assert file_id is not None
    delete_file(backends, file_id, "local")
    parent = get_job(backends.database, parent_id)
    if parent.planned_key is None:
        with pytest.raises(Conflict) as caught:
            rerun_job(backends, "local", parent_id)
        assert caught.value.code == "input_gone"
    else:
        assert indices(backends, rerun_of(backends, parent_id)) == [0, 5]


def test_a_deleted_job_is_kept_until_its_rerun_has_read_it(backends: Backends) -> None:
    parent_id = partly_failed(backends, {0, 5})
    job = rerun_job(backends, "local", parent_id)
    delete_job(backends.database, parent_id)
    assert purge_jobs(backends) == 0
    run_intake(backends, job.id)
    assert indices(backends, get_job(backends.database, job.id)) == [0, 5]
    assert purge_jobs(backends) == 1
    run_chunk(backends, job.id)
    assert ended(backends, job.id).completed == 2


def test_a_rerun_whose_plan_is_gone_says_so(backends: Backends) -> None:
    parent_id = partly_failed(backends, {0})
    job = rerun_job(backends, "local", parent_id)
    planned_key = get_job(backends.database, parent_id).planned_key
    assert planned_key is not None
    backends.storage.delete(planned_key)
    run_intake(backends, job.id)
    job = get_job(backends.database, job.id)
    assert (job.status, [fault["code"] for fault in job.errors or []]) == (
        JobStatus.FAILED,
        ["input_missing"],
    )


def test_a_rerun_of_a_job_that_is_not_there_any_more_says_so(backends: Backends) -> None:
    job = rerun_job(backends, "local", partly_failed(backends, {0}))
    with backends.database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(parent_id="batch_none"))
    run_intake(backends, job.id)
    job = get_job(backends.database, job.id)
    assert (job.status, [fault["code"] for fault in job.errors or []]) == (
        JobStatus.FAILED,
        ["input_missing"],
    )
