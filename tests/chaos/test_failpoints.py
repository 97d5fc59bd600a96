"""A process dies at each step that matters: the work goes on from there; nothing is lost or done twice."""

import signal
from collections.abc import Callable

import httpx
import pytest
from sqlalchemy import select

from tasks.failpoints import Failpoint
from tasks.tables import File, Job
from tests.chaos.one_client import OneClient
from tests.chaos.submissions import Answer, Submission, Way
from tests.waiting import eventually

DEATH_S = 30.0
"""Longest until a process comes to the place that is armed."""


@pytest.mark.parametrize("place", list(Failpoint))
def test_what_a_process_leaves_behind_when_it_dies_there_is_brought_to_its_end(
    place: Failpoint, client: OneClient
) -> None:
    SCENARIOS[place](client, place)
    assert client.mill.has_died_at(place)
    assert client.violations() == []


def a_job_runs(client: OneClient, place: Failpoint) -> None:
    """The place is on the way of every job."""
    client.mill.arm(place)
    _, job_id = client.submit(100)
    until_death(client, place)
    assert client.until_ended(job_id) == "completed"


def an_upload_breaks_off(client: OneClient, place: Failpoint) -> None:
    """Nothing was accepted, and nobody sees half a file."""
    submission = client.new(10, way=Way.BATCH)
    client.mill.arm(place)
    assert client.attempt(submission).status is None
    with client.mill.backends.database.read() as session:
        rows = session.scalars(select(File.id).where(File.filename == f"{submission.number}.jsonl")).all()
    assert rows == []
    job_id = attempt_until_answered(client, submission).id
    assert job_id is not None
    assert client.until_ended(job_id) == "completed"


def a_client_gets_no_answer(client: OneClient, place: Failpoint) -> None:
    """The job runs all the same, and is the one that the repeated submission is told of."""
    submission = client.new(10, key="no-answer")
    client.mill.arm(place)
    assert client.attempt(submission).status is None
    with client.mill.backends.database.read() as session:
        made = session.scalars(select(Job.id).where(Job.idempotency_key == submission.key)).one()
    assert client.until_ended(made) == "completed"
    assert attempt_until_answered(client, submission).id == made


def a_worker_drains(client: OneClient, place: Failpoint) -> None:
    """What it had is run by another one."""
    _, job_id = client.submit(600)
    client.until_results(job_id, 50)
    client.mill.arm(place)
    client.mill.parts["engine-1"].send(signal.SIGTERM)
    until_death(client, place)
    assert client.until_ended(job_id) == "completed"


def a_job_expires(client: OneClient, place: Failpoint) -> None:
    """What has not run by then is told so."""
    client.mill.arm(place)
    _, job_id = client.submit(1200, window="2s")
    until_death(client, place)
    assert client.until_ended(job_id) == "expired"


def a_job_is_cancelled(client: OneClient, place: Failpoint) -> None:
    """Whoever asked does not know whether it was heard; it was."""
    submission, job_id = client.submit(600)
    client.until_results(job_id, 50)
    client.mill.arm(place)
    submission.cancel_asked = True
    with pytest.raises(httpx.TransportError):
        client.ask("POST", f"/api/jobs/{job_id}/cancel")
    assert client.until_ended(job_id) == "cancelled"


def a_job_is_deleted(client: OneClient, place: Failpoint) -> None:
    """Nothing of it stays."""
    submission, job_id = client.submit(10)
    assert client.until_ended(job_id) == "completed"
    client.mill.arm(place)
    submission.delete_asked = True
    assert client.ask("DELETE", f"/api/jobs/{job_id}").status_code == 204
    submission.deleted = True
    until_death(client, place)


SCENARIOS: dict[Failpoint, Callable[[OneClient, Failpoint], None]] = {
    Failpoint.FILE_STORED: an_upload_breaks_off,
    Failpoint.JOB_COMMITTED: a_client_gets_no_answer,
    Failpoint.PLAN_WRITTEN: a_job_runs,
    Failpoint.PLAN_ACCEPTED: a_job_runs,
    Failpoint.RUNWAY_TAKEN: a_job_runs,
    Failpoint.RUNWAY_PUBLISHED: a_job_runs,
    Failpoint.CHUNK_LEASED: a_job_runs,
    Failpoint.RESULTS_WRITTEN: a_job_runs,
    Failpoint.CHUNK_FINISHED: a_job_runs,
    Failpoint.RELEASING: a_worker_drains,
    Failpoint.FINALIZING: a_job_runs,
    Failpoint.FILLING: a_job_expires,
    Failpoint.CANCEL_COMMITTED: a_job_is_cancelled,
    Failpoint.PURGE_UNSTORED: a_job_is_deleted,
}


def until_death(client: OneClient, place: Failpoint) -> None:
    """Return when a process has died there."""
    eventually(lambda: client.mill.has_died_at(place), f"a death at {place}", longest_s=DEATH_S)


def attempt_until_answered(client: OneClient, submission: Submission) -> Answer:
    """Send it until the web server answers, which has just been killed."""
    eventually(lambda: client.attempt(submission).status is not None, "an answer")
    return submission.answers[-1]
