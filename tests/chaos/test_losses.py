"""What a crash, a lost broker, a shutdown and a cancel cost, counted by the engines' own logs."""

import math
import signal
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from sqlalchemy import select

from tasks.tables import JobStatus, Result
from tests.chaos.databases import SQLITE
from tests.chaos.faults import forget_redis
from tests.chaos.history import Call
from tests.chaos.mill import MODEL, SETTINGS
from tests.chaos.one_client import OneClient
from tests.chaos.submissions import Submission
from tests.waiting import eventually

# The other database makes no difference to what is counted here; the failpoints' tests have both.
pytestmark = pytest.mark.parametrize("_mill", [SQLITE], indirect=True)

IN_FLIGHT = SETTINGS["models"][MODEL]["max_in_flight"]
LATENCY_S = SETTINGS["models"][MODEL]["simulation"]["latency_s"]

MOST_LOST = IN_FLIGHT + IN_FLIGHT * math.ceil(SETTINGS["flush_s"] / LATENCY_S)
"""Requests that the engine of one worker has, and that it has answered since the last write."""

CHUNK_REQUESTS = 200
"""Many times what may be lost, so that a loss of whole chunks is seen."""

STANDSTILL_MS = 10_000
CANCEL_MS = 5_000
"""Promised are 2 s; the machine that tests may be busy. Without the promise it would be a minute."""


@pytest.fixture(scope="module")
def changed_settings() -> dict[str, Any]:
    return {"chunk_requests": CHUNK_REQUESTS}


def test_a_worker_that_is_killed_costs_what_was_in_flight(client: OneClient) -> None:
    _, job_id = client.submit(2_000)
    # Amid chunks, and not when results appear: without its guarantee that is the end of a chunk.
    client.until_calls(job_id, 3 * CHUNK_REQUESTS + CHUNK_REQUESTS // 2)
    client.mill.parts["engine-1"].send(signal.SIGKILL, to_group=True)
    assert client.until_ended(job_id) == "completed"
    twice = run_twice(client, job_id)
    assert len(twice) <= MOST_LOST
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
    assert run_twice(client, job_id) == []
    assert client.violations() == []


def test_a_shutdown_runs_nothing_twice_and_counts_no_attempt(client: OneClient) -> None:
    _, job_id = client.submit(1_000)
    client.until_results(job_id, 300)
    for engine in ("engine-1", "engine-2"):
        client.mill.parts[engine].send(signal.SIGTERM)
    assert client.until_ended(job_id) == "completed"
    assert run_twice(client, job_id) == []
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


def test_workers_whose_clocks_are_wrong_keep_their_chunks_and_lose_them_in_time(client: OneClient) -> None:
    start_engines_again(client, {"engine-1": 3_600, "engine-2": -3_600})
    _, job_id = client.submit(1_000)
    client.until_results(job_id, 300)
    client.mill.parts["engine-1"].send(signal.SIGKILL, to_group=True)
    # What a lease of an hour would make impossible.
    assert client.until_ended(job_id) == "completed"
    # By the slow clock every lease would have run out before it began.
    assert len(run_twice(client, job_id)) <= MOST_LOST
    start_engines_again(client, {"engine-1": 0, "engine-2": 0})
    assert client.violations() == []


def start_engines_again(client: OneClient, clock_offsets_s: dict[str, int]) -> None:
    """Engine workers whose clocks are wrong by so much."""
    for name, offset_s in clock_offsets_s.items():
        part = client.mill.parts[name]
        starts, part.clock_offset_s = part.starts, offset_s
        part.send(signal.SIGTERM)
        eventually(partial(lambda part, starts: part.starts > starts, part, starts), f"a new {name}")
    client.mill.wait_until_ready()


def calls_of(client: OneClient, job_id: str) -> list[list[Call]]:
    """For each request of a job, the times it entered an engine."""
    return [calls for (of, _), calls in client.history().calls.items() if of == job_id]


def run_twice(client: OneClient, job_id: str) -> list[list[Call]]:
    """Those that entered an engine more than once."""
    return [calls for calls in calls_of(client, job_id) if len(calls) > 1]
