"""Sending messages: a broker that is away costs the sender a moment and loses nothing."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from config.celeryconfig import PUBLISHER_TIMEOUT_S, celery_settings
from config.settings import load_settings
from tasks.backends import Backends
from tasks.dispatch import fill_runway
from tasks.messages import Message, broker_is_away, send, waiting_messages
from tasks.tables import ChunkState
from tests.samples import chunks_of, started_job
from tests.waiting import eventually
from workers.embedded_redis import EmbeddedRedis

LONGEST_S = 3.0
"""What a request that publishes may wait for a broker that is away."""


def app_on(url: str, folder: Path) -> Celery:
    """An application as the web server has it."""
    app = Celery("publisher", set_as_current=False)
    settings = load_settings(data_dir=folder, redis_url=url)
    app.conf.update(celery_settings(settings, PUBLISHER_TIMEOUT_S))
    return app


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path / "redis")
    server.start(tmp_path / "redis.log")
    yield server
    server.stop()


def message(number: int) -> Message:
    return Message("nobody.takes.it", (number,), "letters", f"number {number}")


def test_messages_arrive_in_order(celery_app: Celery) -> None:
    assert send(celery_app, [message(1), message(2)])
    assert waiting_messages(celery_app, "letters") == 2


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis+socket:///nowhere/redis.sock"])
def test_a_broker_that_is_not_there_costs_a_moment(tmp_path: Path, url: str) -> None:
    app = app_on(url, tmp_path)
    began = time.monotonic()
    assert not send(app, [message(1)])
    assert time.monotonic() - began < LONGEST_S
    app.close()


def test_a_frozen_broker_costs_a_moment_and_no_second_one(server: EmbeddedRedis, tmp_path: Path) -> None:
    app = app_on(server.url, tmp_path)
    assert send(app, [message(1)])
    assert server.child is not None
    assert server.child.pid is not None
    os.kill(server.child.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert not send(app, [message(2)])
        assert time.monotonic() - began < LONGEST_S
        began = time.monotonic()
        assert broker_is_away(app)
        assert not send(app, [message(3)])
        assert time.monotonic() - began < 0.1
    finally:
        os.kill(server.child.pid, signal.SIGCONT)
    eventually(lambda: send(app, [message(4)]), "the broker is tried again")
    app.pool.force_close_all()
    app.close()


def test_nothing_is_put_onto_the_runway_while_the_broker_is_away(
    sqlite_backends: Backends, tmp_path: Path
) -> None:
    job_id = started_job(sqlite_backends, 3)
    app = app_on("redis://127.0.0.1:1/0", tmp_path)
    assert not send(app, [message(1)])
    assert fill_runway(app, sqlite_backends, "sim") == 0
    assert chunks_of(sqlite_backends, job_id)[0].state == ChunkState.PENDING
    app.close()
