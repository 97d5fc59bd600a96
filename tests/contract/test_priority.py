"""A job's priority: it changes for what no worker has yet, and the work moves to the other lane."""

import pytest
from celery import Celery

from tasks.backends import Backends
from tasks.chunks import lease_chunk
from tasks.dispatch import fill_runway
from tasks.errors import Conflict, NotFound
from tasks.jobs import get_job, set_lane
from tasks.messages import waiting_messages
from tasks.tables import FINAL_STATUSES, ChunkState, JobStatus, Lane
from tests.samples import change_job, chunks_of, leased, started_job


def test_queued_work_moves_to_the_new_lane_and_leased_work_stays(
    backends: Backends, celery_app: Celery
) -> None:
    job_id = started_job(backends, 3, per_chunk=1, lane=Lane.BULK)
    fill_runway(celery_app, backends, "sim")
    assert waiting_messages(celery_app, "sim.bulk") == 3
    assert lease_chunk(backends.database, job_id, 0, "worker-1", 30) is not None

    assert set_lane(backends.database, job_id, Lane.URGENT, "local").lane == Lane.URGENT
    states = [chunk.state for chunk in chunks_of(backends, job_id)]
    assert states == [ChunkState.LEASED, ChunkState.PENDING, ChunkState.PENDING]
    # Whoever takes an old message now finds nothing to do.
    assert lease_chunk(backends.database, job_id, 1, "worker-2", 30) is None

    assert fill_runway(celery_app, backends, "sim") == 2
    assert waiting_messages(celery_app, "sim.urgent") == 2
    lease = lease_chunk(backends.database, job_id, 1, "worker-2", 30)
    assert lease is not None
    assert lease.lane is Lane.URGENT
    # The old message of the same chunk is a repetition.
    assert lease_chunk(backends.database, job_id, 1, "worker-3", 30) is None


def test_a_job_in_validation_takes_its_new_priority_along(sqlite_backends: Backends) -> None:
    job_id = started_job(sqlite_backends, 1)
    change_job(sqlite_backends, job_id, status=JobStatus.VALIDATING)
    assert set_lane(sqlite_backends.database, job_id, Lane.BULK).lane == Lane.BULK


@pytest.mark.parametrize("status", sorted(FINAL_STATUSES))
def test_the_priority_of_a_job_that_has_ended_stays(sqlite_backends: Backends, status: JobStatus) -> None:
    job_id = started_job(sqlite_backends, 1)
    change_job(sqlite_backends, job_id, status=status)
    with pytest.raises(Conflict) as refused:
        set_lane(sqlite_backends.database, job_id, Lane.URGENT)
    assert refused.value.code == "job_has_ended"
    assert get_job(sqlite_backends.database, job_id).lane == Lane.NORMAL


def test_the_priority_of_another_tenants_job_stays(sqlite_backends: Backends) -> None:
    job_id = started_job(sqlite_backends, 1)
    leased(sqlite_backends, job_id)
    for tenant, identifier in (("stranger", job_id), ("local", "batch_none")):
        with pytest.raises(NotFound):
            set_lane(sqlite_backends.database, identifier, Lane.URGENT, tenant)
    assert get_job(sqlite_backends.database, job_id).lane == Lane.NORMAL
