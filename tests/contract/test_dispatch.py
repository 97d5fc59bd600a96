"""Dispatch and the sweeper, on a real broker: the runway is kept full and no chunk is forgotten."""

import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from config.celeryconfig import celery_settings
from config.settings import load_settings
from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.dispatch import CHUNK_TASK, fill_runway, queue_name, republish_missing
from tasks.jobs import cancel_job, get_job
from tasks.messages import waiting_messages
from tasks.sweep import sweep
from tasks.tables import Chunk, ChunkState, JobStatus, Lane
from tests.samples import (
    change_chunks,
    change_job,
    chunks_of,
    good_input,
    leased,
    outcomes_of,
    results_of,
    started_job,
    submit,
    with_settings,
)
from tests.waiting import eventually
from workers.embedded_redis import EmbeddedRedis

LONG_AGO_MS = 1


def messages(app: Celery, lane: Lane = Lane.NORMAL, model: str = "sim") -> list[tuple[Any, ...]]:
    """(job, chunk, requests, tokens) of each message on a queue, in the order a worker gets them."""
    with app.connection_for_read() as connection:
        raw = connection.default_channel.client.lrange(queue_name(model, lane), 0, -1)
    found = []
    for message in reversed(raw):
        decoded = json.loads(message)
        assert decoded["headers"]["task"] == CHUNK_TASK
        with app.connection_for_read() as connection:
            body = connection.default_channel.decode_body(
                decoded["body"], decoded["properties"]["body_encoding"]
            )
        found.append(tuple(json.loads(body)[0]))
    return found


def sent(app: Celery, lane: Lane = Lane.NORMAL, model: str = "sim") -> list[tuple[str, int]]:
    return [(job_id, seq) for job_id, seq, _, _ in messages(app, lane, model)]


def lose_messages(app: Celery, lane: Lane = Lane.NORMAL) -> None:
    with app.connection_for_write() as connection:
        connection.default_channel.client.delete(queue_name("sim", lane))


def states(backends: Backends, job_id: str) -> list[str]:
    return [chunk.state for chunk in chunks_of(backends, job_id)]


def test_the_runway_holds_no_more_than_it_should(backends: Backends, celery_app: Celery) -> None:
    narrow = with_settings(backends, runway_chunks=4)
    job_id = started_job(backends, 10, per_chunk=1)
    assert fill_runway(celery_app, narrow, "sim") == 4
    assert fill_runway(celery_app, narrow, "sim") == 0, "it is full"
    assert sent(celery_app) == [(job_id, seq) for seq in range(4)]
    assert states(backends, job_id) == [ChunkState.QUEUED] * 4 + [ChunkState.PENDING] * 6


def test_the_runway_is_filled_up_as_chunks_are_taken_from_it(backends: Backends, celery_app: Celery) -> None:
    narrow = with_settings(backends, runway_chunks=4)
    job_id = started_job(backends, 10, per_chunk=1)
    for taken in range(10):
        fill_runway(celery_app, narrow, "sim")
        assert 1 <= states(backends, job_id).count(ChunkState.QUEUED) <= 4
        with backends.database.write() as session:
            session.get_one(Chunk, (job_id, taken)).state = ChunkState.DONE
    assert states(backends, job_id) == [ChunkState.DONE] * 10
    assert sent(celery_app) == [(job_id, seq) for seq in range(10)]


def test_a_message_names_its_chunk_and_its_size_and_nothing_else(
    backends: Backends, celery_app: Celery
) -> None:
    job_id = started_job(backends, 3, per_chunk=2)
    fill_runway(celery_app, backends, "sim")
    first, last = chunks_of(backends, job_id)
    assert messages(celery_app) == [
        (job_id, 0, 2, first.estimated_tokens),
        (job_id, 1, 1, last.estimated_tokens),
    ]


def test_each_lane_and_model_has_its_own_queue(backends: Backends, celery_app: Celery) -> None:
    urgent = started_job(backends, 1, lane=Lane.URGENT)
    bulk = started_job(backends, 1, lane=Lane.BULK)
    other = started_job(backends, 1, model="other")
    assert fill_runway(celery_app, backends, "sim") == 2
    assert sent(celery_app, Lane.URGENT) == [(urgent, 0)]
    assert sent(celery_app, Lane.BULK) == [(bulk, 0)]
    assert sent(celery_app, model="other") == []
    assert fill_runway(celery_app, backends, "other") == 1
    assert sent(celery_app, model="other") == [(other, 0)]


def test_an_urgent_job_goes_before_an_older_one(backends: Backends, celery_app: Celery) -> None:
    narrow = with_settings(backends, runway_chunks=3)
    older = started_job(backends, 5, per_chunk=1, lane=Lane.BULK)
    urgent = started_job(backends, 2, per_chunk=1, lane=Lane.URGENT)
    fill_runway(celery_app, narrow, "sim")
    assert sent(celery_app, Lane.URGENT) == [(urgent, 0), (urgent, 1)]
    assert sent(celery_app, Lane.BULK) == [(older, 0)]


def test_chunks_of_jobs_that_do_not_run_stay_where_they_are(backends: Backends, celery_app: Celery) -> None:
    job_id = started_job(backends, 1)
    change_job(backends, job_id, status=JobStatus.FINALIZING)
    assert fill_runway(celery_app, backends, "sim") == 0
    assert sent(celery_app) == []


def test_lost_messages_are_sent_again(backends: Backends, celery_app: Celery) -> None:
    job_id = started_job(backends, 3, per_chunk=1)
    fill_runway(celery_app, backends, "sim")
    lose_messages(celery_app)
    assert republish_missing(celery_app, backends.database) == 0, "they may be on their way"
    change_chunks(backends, job_id, queued_ms=LONG_AGO_MS)
    assert republish_missing(celery_app, backends.database) == 3
    assert sent(celery_app) == [(job_id, seq) for seq in range(3)]
    assert republish_missing(celery_app, backends.database) == 0
    assert states(backends, job_id) == [ChunkState.QUEUED] * 3


def test_messages_that_wait_are_not_sent_again(backends: Backends, celery_app: Celery) -> None:
    job_id = started_job(backends, 3, per_chunk=1)
    fill_runway(celery_app, backends, "sim")
    change_chunks(backends, job_id, queued_ms=LONG_AGO_MS)
    assert republish_missing(celery_app, backends.database) == 0
    assert waiting_messages(celery_app, queue_name("sim", Lane.NORMAL)) == 3


def test_a_broker_that_is_down_loses_nothing(sqlite_backends: Backends, tmp_path: Path) -> None:
    backends = sqlite_backends
    server = EmbeddedRedis(tmp_path / "redis")
    server.start(tmp_path / "redis.log")
    app = Celery("tests", set_as_current=False)
    app.conf.update(celery_settings(load_settings(data_dir=tmp_path, redis_url=server.url)))
    narrow = with_settings(backends, runway_chunks=2)
    job_id = started_job(backends, 3, per_chunk=1)
    try:
        fill_runway(app, narrow, "sim")
        server.stop()
        change_chunks(backends, job_id, state=ChunkState.PENDING)
        assert fill_runway(app, narrow, "sim") == 2, "it must not raise"
        change_chunks(backends, job_id, queued_ms=LONG_AGO_MS)
        server.start(tmp_path / "redis.log")
        lose_messages(app)
        eventually(lambda: republish_missing(app, backends.database) == 2, "the broker is tried again")
        assert sent(app) == [(job_id, 0), (job_id, 1)]
    finally:
        app.pool.force_close_all()
        app.close()
        server.stop()


def test_a_broker_that_was_never_there_loses_nothing(sqlite_backends: Backends, tmp_path: Path) -> None:
    backends = sqlite_backends
    app = Celery("tests", set_as_current=False)
    url = f"redis+socket://{tmp_path / 'none.sock'}"
    app.conf.update(celery_settings(load_settings(data_dir=tmp_path, redis_url=url)))
    app.conf.broker_connection_timeout = 0.1
    job_id = started_job(backends, 1)
    assert fill_runway(app, backends, "sim") == 1, "it must not raise"
    assert states(backends, job_id) == [ChunkState.QUEUED]
    app.close()


def test_a_sweep_puts_back_what_a_dead_worker_had(backends: Backends, celery_app: Celery) -> None:
    job_id = started_job(backends, 2, per_chunk=1)
    leased(backends, job_id, 0)
    change_chunks(backends, job_id, lease_expires_ms=LONG_AGO_MS, state=ChunkState.LEASED)
    assert sweep(celery_app, backends) == []
    assert sorted(sent(celery_app)) == [(job_id, 0), (job_id, 1)]
    assert states(backends, job_id) == [ChunkState.QUEUED] * 2


def test_a_sweep_finds_intakes_that_nobody_has(backends: Backends, celery_app: Celery) -> None:
    waiting = submit(backends, good_input(1))
    taken = submit(backends, good_input(1))
    change_job(backends, taken, intake_expires_ms=2**45)
    dead = submit(backends, good_input(1))
    change_job(backends, dead, intake_expires_ms=LONG_AGO_MS)
    assert sorted(sweep(celery_app, backends)) == sorted([waiting, dead])


def test_a_sweep_brings_every_job_to_its_end(backends: Backends, celery_app: Celery) -> None:
    done, cancelled, overdue = (started_job(backends, 2) for _ in range(3))
    lease = leased(backends, done)
    record_results(
        backends.database, lease, outcomes_of(backends, lease), worker="w", lease_s=30, finish=True
    )
    cancel_job(backends.database, cancelled)
    change_job(backends, overdue, deadline_ms=LONG_AGO_MS)
    sweep(celery_app, backends)
    ended = [get_job(backends.database, job_id) for job_id in (done, cancelled, overdue)]
    assert [job.status for job in ended] == [JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.EXPIRED]
    assert [len(results_of(backends, job.id)) for job in ended] == [2] * 3


def test_a_job_whose_plan_is_lost_does_not_stop_the_sweep(backends: Backends, celery_app: Celery) -> None:
    broken, sound, running = (started_job(backends, 2) for _ in range(3))
    key = get_job(backends.database, broken).planned_key
    assert key is not None
    backends.storage.delete(key)
    for job_id in (broken, sound):
        cancel_job(backends.database, job_id)
    sweep(celery_app, backends)
    assert get_job(backends.database, sound).status == JobStatus.CANCELLED
    assert sent(celery_app) == [(running, 0)]


def test_a_sweep_with_nothing_to_do_changes_nothing(backends: Backends, celery_app: Celery) -> None:
    assert sweep(celery_app, backends) == []


@pytest.mark.parametrize("lane", list(Lane))
def test_a_queue_that_does_not_exist_has_no_messages(celery_app: Celery, lane: Lane) -> None:
    assert waiting_messages(celery_app, queue_name("nobody", lane)) == 0
