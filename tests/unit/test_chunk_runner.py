"""A worker's chunks: every request through the engine once, every result recorded, nothing held too long."""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from tasks.backends import Backends
from tasks.chunks import Recorded, record_results, release_chunk
from tasks.faults import StorageFailed
from tasks.finalise import settle
from tasks.intake import run_intake
from tasks.jobs import cancel_job, get_job
from tasks.sweep import take_back_expired_leases
from tasks.tables import ChunkState, JobStatus
from tests.engines import WatchedHost, worker_of
from tests.samples import (
    change_chunks,
    change_job,
    chunks_of,
    leased,
    outcomes_of,
    request_line,
    results_of,
    started_job,
    submit,
    with_settings,
)
from tests.waiting import LONGEST_S, eventually
from workers import chunk_runner, isolation
from workers.engine import EngineDead, EngineUnavailable


@pytest.fixture
def host() -> Iterator[WatchedHost]:
    host = WatchedHost()
    yield host
    host.close()


def job_of(backends: Backends, prompts: list[str]) -> str:
    """A job in progress with one chunk of these prompts."""
    lines = [request_line(f"r{number}", prompt=prompt) for number, prompt in enumerate(prompts)]
    job_id = submit(backends, b"\n".join(lines))
    run_intake(backends, job_id)
    return job_id


def statuses(backends: Backends, job_id: str) -> dict[int, int | None]:
    return {row.index: row.status_code for row in results_of(backends, job_id)}


def test_every_request_of_a_chunk_gets_its_result(sqlite_backends: Backends, host: WatchedHost) -> None:
    job_id = started_job(sqlite_backends, 100)
    with worker_of(sqlite_backends, host, in_flight=8) as worker:
        recorded = worker.run(job_id)
        assert recorded == Recorded(JobStatus.IN_PROGRESS, all_results_in=True)
        assert (worker.room._requests, worker.room._tokens) == (0, 0)
    assert statuses(sqlite_backends, job_id) == dict.fromkeys(range(100), 200)
    assert len(set(host.engine.entered)) == 100
    assert chunks_of(sqlite_backends, job_id)[0].state == ChunkState.DONE
    job = get_job(sqlite_backends.database, job_id)
    assert (job.completed, job.output_tokens) == (100, 700)
    first = json.loads(results_of(sqlite_backends, job_id)[0].body or b"")
    assert first["choices"][0]["message"]["content"] == "simulated answer"


def test_no_more_requests_are_in_the_engine_than_it_has_seats(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    jobs = [started_job(sqlite_backends, 10) for _ in range(3)]
    host.close_gate()
    with worker_of(sqlite_backends, host, in_flight=7) as worker:
        running = [worker.start(job_id) for job_id in jobs]
        eventually(lambda: host.engine.inside == 7)
        host.open_gate()
        assert all(future.result(LONGEST_S) for future in running)
    assert len(host.engine.entered) == 30


def test_a_refused_request_does_not_disturb_its_neighbours(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    job_id = job_of(sqlite_backends, ["a", "SIMULATE-ERROR", "b"])
    with worker_of(sqlite_backends, host) as worker:
        worker.run(job_id)
    assert statuses(sqlite_backends, job_id) == {0: 200, 1: 400, 2: 200}
    refused = results_of(sqlite_backends, job_id)[1]
    assert json.loads(refused.body or b"")["error"]["code"] == 400
    assert refused.error_code is None


def test_an_engine_that_dies_gives_its_chunk_back_and_counts_the_attempt(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    job_id = job_of(sqlite_backends, ["a", "b", "SIMULATE-DEATH", "c"])
    with worker_of(sqlite_backends, host, in_flight=1) as worker, pytest.raises(EngineDead):
        worker.run(job_id)
    chunk = chunks_of(sqlite_backends, job_id)[0]
    assert (chunk.state, chunk.attempt, chunk.lease_owner) == (ChunkState.PENDING, 1, None)
    # What had been answered before is kept.
    assert statuses(sqlite_backends, job_id) == {0: 200, 1: 200}


def test_a_request_that_runs_alone_is_counted_before_it_starts(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    job_id = started_job(sqlite_backends, 2)
    change_chunks(sqlite_backends, job_id, attempt=sqlite_backends.settings.max_attempts - 1)
    host.close_gate()
    with worker_of(sqlite_backends, host) as worker:
        running = worker.start(job_id)
        eventually(lambda: host.engine.inside == 1)
        chunk = chunks_of(sqlite_backends, job_id)[0]
        assert (chunk.alone_index, chunk.alone_starts) == (0, 1)
        host.open_gate()
        assert running.result(LONGEST_S) is not None
    chunk = chunks_of(sqlite_backends, job_id)[0]
    assert (chunk.alone_index, chunk.alone_starts) == (1, 1)


@pytest.mark.parametrize("count", [1, 3])
def test_a_request_with_which_two_workers_vanished_is_not_started_again(
    sqlite_backends: Backends, host: WatchedHost, count: int
) -> None:
    job_id = started_job(sqlite_backends, count)
    change_chunks(
        sqlite_backends,
        job_id,
        attempt=sqlite_backends.settings.max_attempts + 1,
        alone_index=0,
        alone_starts=isolation.MOST_STARTS_ALONE,
    )
    with worker_of(sqlite_backends, host) as worker:
        recorded = worker.run(job_id)
    assert recorded is not None
    assert recorded.all_results_in
    rows = results_of(sqlite_backends, job_id)
    assert [(row.status_code, row.error_code) for row in rows] == [
        (None, "engine_crash"),
        *[(200, None)] * (count - 1),
    ]
    assert len(host.engine.entered) == count - 1
    assert settle(sqlite_backends, job_id) == JobStatus.COMPLETED


def test_killed_workers_alone_convict_nobody(sqlite_backends: Backends, host: WatchedHost) -> None:
    job_id = started_job(sqlite_backends, 3)
    change_chunks(sqlite_backends, job_id, attempt=10 * sqlite_backends.settings.max_attempts)
    with worker_of(sqlite_backends, host) as worker:
        worker.run(job_id)
    assert statuses(sqlite_backends, job_id) == dict.fromkeys(range(3), 200)


def test_a_chunk_that_waits_for_its_turn_alone_is_not_blamed_for_the_death_of_an_engine(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    deadly = job_of(sqlite_backends, ["SIMULATE-DEATH"])
    suspect = started_job(sqlite_backends, 3)
    attempts = sqlite_backends.settings.max_attempts - 2
    change_chunks(sqlite_backends, suspect, attempt=attempts)
    host.close_gate()
    with worker_of(sqlite_backends, host, in_flight=8) as worker:
        running = worker.start(deadly)
        eventually(lambda: host.engine.inside == 1)
        waiting = worker.start(suspect)
        eventually(lambda: chunks_of(sqlite_backends, suspect)[0].state == ChunkState.LEASED)
        host.open_gate()
        with pytest.raises(EngineDead):
            running.result(LONGEST_S)
        assert waiting.result(LONGEST_S) is None
    assert chunks_of(sqlite_backends, suspect)[0].attempt == attempts
    assert len(host.engine.entered) == 1


@pytest.mark.parametrize(("starts", "most_inside"), [(1, 40), (2, 40), (3, 3), (4, 1)])
def test_a_suspect_chunk_runs_in_ever_smaller_groups(
    sqlite_backends: Backends, host: WatchedHost, starts: int, most_inside: int
) -> None:
    job_id = started_job(sqlite_backends, 40)
    change_chunks(sqlite_backends, job_id, attempt=starts - 1)
    with worker_of(sqlite_backends, host, in_flight=64) as worker:
        worker.run(job_id)
    assert host.engine.most_inside == most_inside
    assert statuses(sqlite_backends, job_id) == dict.fromkeys(range(40), 200)


@pytest.mark.parametrize("culprits", [{0}, {39}, {17}, {3, 30}, {4, 5, 6}])
def test_requests_that_kill_the_engine_fail_alone(
    sqlite_backends: Backends, host: WatchedHost, culprits: set[int]
) -> None:
    prompts = ["SIMULATE-DEATH" if number in culprits else "live" for number in range(40)]
    job_id = job_of(sqlite_backends, prompts)
    deaths = 0
    while settle(sqlite_backends, job_id) != JobStatus.COMPLETED:
        with worker_of(sqlite_backends, host, in_flight=64) as worker:
            try:
                worker.run(job_id)
            except EngineDead:
                deaths += 1
                assert deaths <= 2 + 2 * len(culprits)
                host.revive()
    rows = results_of(sqlite_backends, job_id)
    assert {row.index for row in rows if row.error_code == "engine_crash"} == culprits
    assert {row.index for row in rows if row.status_code == 200} == set(range(40)) - culprits


def test_the_last_allowed_attempt_is_made(sqlite_backends: Backends, host: WatchedHost) -> None:
    job_id = started_job(sqlite_backends, 1)
    change_chunks(sqlite_backends, job_id, attempt=sqlite_backends.settings.max_attempts - 1)
    with worker_of(sqlite_backends, host) as worker:
        worker.run(job_id)
    assert statuses(sqlite_backends, job_id) == {0: 200}


def test_cancelling_a_job_takes_its_requests_out_of_the_engine(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    job_id = started_job(sqlite_backends, 10)
    host.close_gate()
    with worker_of(sqlite_backends, host, in_flight=4) as worker:
        running = worker.start(job_id)
        eventually(lambda: host.engine.inside == 4)
        cancel_job(sqlite_backends.database, job_id)
        assert running.result(LONGEST_S) is None
        eventually(lambda: host.engine.inside == 0)
    assert (host.engine.aborted, len(host.engine.entered)) == (4, 4)
    chunk = chunks_of(sqlite_backends, job_id)[0]
    assert (chunk.state, chunk.attempt) == (ChunkState.PENDING, 0), "it is nobody's fault"
    assert settle(sqlite_backends, job_id) == JobStatus.CANCELLED


@pytest.mark.parametrize("status", [JobStatus.FINALIZING, JobStatus.EXPIRED])
def test_a_job_that_ends_takes_its_requests_out_of_the_engine(
    sqlite_backends: Backends, host: WatchedHost, status: JobStatus
) -> None:
    job_id = started_job(sqlite_backends, 3)
    host.close_gate()
    with worker_of(sqlite_backends, host) as worker:
        running = worker.start(job_id)
        eventually(lambda: host.engine.inside == 3)
        change_job(sqlite_backends, job_id, status=status)
        assert running.result(LONGEST_S) is None
        eventually(lambda: host.engine.inside == 0)
    assert results_of(sqlite_backends, job_id) == []


def test_a_stopping_worker_finishes_what_is_in_the_engine_and_gives_back_the_rest(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    job_id = started_job(sqlite_backends, 10)
    host.close_gate()
    with worker_of(sqlite_backends, host, in_flight=3) as worker:
        running = worker.start(job_id)
        eventually(lambda: host.engine.inside == 3)
        worker.runner.stop()
        host.open_gate()
        assert running.result(LONGEST_S) is None
        assert worker.room._requests == 0
    assert statuses(sqlite_backends, job_id) == {0: 200, 1: 200, 2: 200}
    chunk = chunks_of(sqlite_backends, job_id)[0]
    assert (chunk.state, chunk.attempt) == (ChunkState.PENDING, 0)
    assert host.engine.aborted == 0


@pytest.mark.parametrize("how", ["the time to drain is over", "a second signal"])
def test_a_worker_that_must_stop_now_gives_back_everything(
    sqlite_backends: Backends, host: WatchedHost, how: str
) -> None:
    job_id = started_job(sqlite_backends, 5)
    host.close_gate()
    with worker_of(with_settings(sqlite_backends, drain_s=0.05), host, in_flight=3) as worker:
        running = worker.start(job_id)
        eventually(lambda: host.engine.inside == 3)
        if how == "a second signal":
            worker.runner.cut_off()
        else:
            worker.runner.stop()
        assert running.result(LONGEST_S) is None
        eventually(lambda: host.engine.inside == 0)
    chunk = chunks_of(sqlite_backends, job_id)[0]
    assert (chunk.state, chunk.attempt, results_of(sqlite_backends, job_id)) == (ChunkState.PENDING, 0, [])


@pytest.mark.parametrize("counts", [True, False])
def test_a_chunk_that_comes_again_runs_only_what_is_left(
    sqlite_backends: Backends, host: WatchedHost, counts: bool
) -> None:
    job_id = started_job(sqlite_backends, 6)
    lease = leased(sqlite_backends, job_id)
    done = outcomes_of(sqlite_backends, lease, [0, 2, 4])
    record_results(sqlite_backends.database, lease, done, worker="w", lease_s=30, finish=False)
    release_chunk(sqlite_backends.database, lease, attempts=lease.attempt - (not counts))
    with worker_of(sqlite_backends, host) as worker:
        recorded = worker.run(job_id)
    assert recorded is not None
    assert recorded.all_results_in
    assert sorted(int(name.split("-")[1]) for name in host.engine.entered) == [1, 3, 5]
    assert get_job(sqlite_backends.database, job_id).completed == 6


def test_a_chunk_that_was_taken_over_is_dropped(sqlite_backends: Backends, host: WatchedHost) -> None:
    job_id = started_job(sqlite_backends, 3)
    host.close_gate()
    # Its own renewals must not win against the clock that is turned on under it.
    backends = with_settings(sqlite_backends, lease_s=-1)
    with worker_of(backends, host) as worker:
        running = worker.start(job_id)
        eventually(lambda: host.engine.inside == 3)
        eventually(lambda: take_back_expired_leases(backends.database) == 1)
        assert running.result(LONGEST_S) is None
        eventually(lambda: host.engine.inside == 0)
    assert results_of(sqlite_backends, job_id) == []
    assert chunks_of(sqlite_backends, job_id)[0].state == ChunkState.PENDING


def test_an_engine_that_cannot_take_requests_now_gets_them_later(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    job_id = started_job(sqlite_backends, 3)
    host.engine.fault = EngineUnavailable("busy")
    with worker_of(sqlite_backends, host) as worker:
        with pytest.raises(EngineUnavailable):
            worker.run(job_id)
        chunk = chunks_of(sqlite_backends, job_id)[0]
        assert (chunk.state, chunk.attempt) == (ChunkState.PENDING, 0)
        host.engine.fault = None
        assert worker.run(job_id) is not None
    assert statuses(sqlite_backends, job_id) == dict.fromkeys(range(3), 200)


def test_storage_that_fails_now_costs_no_attempt(
    sqlite_backends: Backends, host: WatchedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = started_job(sqlite_backends, 3)

    def fail(*_: object) -> bytes:
        raise StorageFailed("the disk is away")

    with worker_of(sqlite_backends, host) as worker, monkeypatch.context() as away:
        away.setattr(sqlite_backends.storage, "read_range", fail)
        with pytest.raises(StorageFailed):
            worker.run(job_id)
        chunk = chunks_of(sqlite_backends, job_id)[0]
        assert (chunk.state, chunk.attempt) == (ChunkState.PENDING, 0)


def test_a_fault_of_our_own_gives_the_chunk_back_and_counts(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    job_id = started_job(sqlite_backends, 3)
    host.engine.fault = KeyError("a fault of ours")
    with worker_of(sqlite_backends, host) as worker, pytest.raises(KeyError):
        worker.run(job_id)
    chunk = chunks_of(sqlite_backends, job_id)[0]
    assert (chunk.state, chunk.attempt) == (ChunkState.PENDING, 1)


def test_answers_are_kept_while_the_database_is_locked(
    sqlite_backends: Backends, host: WatchedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = started_job(sqlite_backends, 5)
    refused: list[object] = []

    def locked(*arguments: Any, **named: Any) -> Recorded:
        if len(refused) < 3:
            refused.append(arguments)
            raise OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))
        return record_results(*arguments, **named)

    monkeypatch.setattr(chunk_runner, "record_results", locked)
    monkeypatch.setattr(chunk_runner, "FIRST_WAIT_S", 0.01)
    with worker_of(sqlite_backends, host) as worker:
        recorded = worker.run(job_id)
    assert recorded is not None
    assert recorded.all_results_in
    assert statuses(sqlite_backends, job_id) == dict.fromkeys(range(5), 200)
    assert len(host.engine.entered) == 5, "none ran twice"


def test_a_worker_that_must_stop_does_not_wait_for_the_database(
    sqlite_backends: Backends, host: WatchedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = started_job(sqlite_backends, 1)

    def away(*_: Any, **__: Any) -> Recorded:
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("disk I/O error"))

    monkeypatch.setattr(chunk_runner, "record_results", away)
    with worker_of(sqlite_backends, host) as worker:
        running = worker.start(job_id)
        eventually(lambda: len(host.engine.entered) == 1)
        worker.runner.cut_off()
        with pytest.raises(OperationalError):
            running.result(LONGEST_S)


def test_a_message_that_comes_twice_does_nothing(sqlite_backends: Backends, host: WatchedHost) -> None:
    job_id = started_job(sqlite_backends, 2)
    with worker_of(sqlite_backends, host) as worker:
        worker.run(job_id)
        assert worker.run(job_id) is None
    assert len(host.engine.entered) == 2


def test_leases_are_renewed_while_an_engine_takes_its_time(
    sqlite_backends: Backends, host: WatchedHost
) -> None:
    job_id = started_job(sqlite_backends, 1)
    host.close_gate()
    with worker_of(sqlite_backends, host) as worker:
        running = worker.start(job_id)
        eventually(lambda: host.engine.inside == 1)
        change_chunks(sqlite_backends, job_id, lease_expires_ms=1)
        eventually(lambda: (chunks_of(sqlite_backends, job_id)[0].lease_expires_ms or 0) > 1)
        host.open_gate()
        assert running.result(LONGEST_S) is not None
