"""What a crash, a lost broker, a shutdown and a cancel cost, counted by the engines' own logs."""

import math
import signal
from itertools import pairwise
from random import Random

import pytest
from sqlalchemy import select

from tasks.tables import JobStatus, Result
from tests.chaos.databases import SQLITE
from tests.chaos.faults import forget_redis
from tests.chaos.history import Call
from tests.chaos.mill import MODEL, SETTINGS
from tests.chaos.one_client import OneClient
from tests.chaos.submissions import Submission

# The other database makes no difference to what is counted here; the failpoints' tests have both.
pytestmark = pytest.mark.parametrize("_mill", [SQLITE], indirect=True)

IN_FLIGHT = SETTINGS["models"][MODEL]["max_in_flight"]
LATENCY_S = SETTINGS["models"][MODEL]["simulation"]["latency_s"]

STANDSTILL_MS = 10_000
CANCEL_MS = 5_000
"""Promised are 2 s; the machine that tests may be busy. Without the promise it would be a minute."""


def test_a_worker_that_is_killed_costs_what_was_in_flight(client: OneClient) -> None:
    _, job_id = client.submit(2_000)
    client.until_results(job_id, 300)
    client.mill.parts["engine-1"].send(signal.SIGKILL, to_group=True)
    assert client.until_ended(job_id) == "completed"
    # In flight is what the engine had, and what it had answered since the last write.
    unwritten = IN_FLIGHT * math.ceil(SETTINGS["flush_s"] / LATENCY_S)
    twice = [calls for calls in calls_of(client, job_id) if len(calls) > 1]
    assert len(twice) <= IN_FLIGHT + unwritten
    assert all(len(calls) == 2 for calls in twice)
    assert client.violations() == []


def test_a_broker_that_forgets_everything_stops_nobody_for_long(client: OneClient) -> None:
    _, job_id = client.submit(2_000)
    client.until_results(job_id, 300)
    forget_redis(client.mill, Random(0))
    assert client.until_ended(job_id) == "completed"
    with client.mill.backends.database.read() as session:
        finished = session.scalars(select(Result.finished_ms).where(Result.job_id == job_id)).all()
    assert max(later - earlier for earlier, later in pairwise(sorted(finished))) < STANDSTILL_MS
    assert all(len(calls) == 1 for calls in calls_of(client, job_id))
    assert client.violations() == []


def test_a_shutdown_runs_nothing_twice_and_counts_no_attempt(client: OneClient) -> None:
    _, job_id = client.submit(1_000)
    client.until_results(job_id, 300)
    for engine in ("engine-1", "engine-2"):
        client.mill.parts[engine].send(signal.SIGTERM)
    assert client.until_ended(job_id) == "completed"
    assert all(len(calls) == 1 for calls in calls_of(client, job_id))
    # Drained chunks were leased again: by their tokens one sees that they were given back.
    chunks = client.history().chunks[job_id]
    assert max(chunk["lease_token"] for chunk in chunks) > 1
    assert {chunk["attempt"] for chunk in chunks} == {1}
    assert client.violations() == []


def test_nothing_of_a_cancelled_job_enters_an_engine_soon_after(client: OneClient) -> None:
    submission, job_id = client.submit(6_000)
    client.until_results(job_id, 300)
    submission.cancel_asked = submission.cancel_granted = True
    assert client.ask("POST", f"/api/jobs/{job_id}/cancel").status_code == 200
    assert client.until_ended(job_id) == "cancelled"
    history = client.history()
    last_ms = max(call.at_ms for calls in calls_of(client, job_id) for call in calls)
    assert last_ms < history.jobs[job_id]["cancelling_ms"] + CANCEL_MS
    assert history.jobs[job_id]["completed"] >= 300
    assert client.violations() == []


def test_a_cancel_that_meets_the_last_result_is_granted_or_refused(client: OneClient) -> None:
    raced: list[tuple[Submission, str]] = []
    for requests in range(1, 31):
        submission, job_id = client.submit(requests)
        # From long before its end to its very end.
        client.until_results(job_id, max(0, requests - requests % 4))
        submission.cancel_asked = True
        status = client.ask("POST", f"/api/jobs/{job_id}/cancel").status_code
        assert status in (200, 409)
        submission.cancel_granted = status == 200
        raced.append((submission, job_id))
    for submission, job_id in raced:
        wanted = JobStatus.CANCELLED if submission.cancel_granted else JobStatus.COMPLETED
        assert client.until_ended(job_id) == wanted
    assert len({submission.cancel_granted for submission, _ in raced}) == 2
    assert client.violations() == []


def calls_of(client: OneClient, job_id: str) -> list[list[Call]]:
    """For each request of a job, the times it entered an engine."""
    return [calls for (of, _), calls in client.history().calls.items() if of == job_id]
