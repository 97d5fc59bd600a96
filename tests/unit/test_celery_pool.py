"""Celery's pool and queue order, as a worker with an engine uses them."""

import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.thread import TaskPool
from celery.exceptions import ImproperlyConfigured
from kombu.utils.json import dumps

from tasks.dispatch import CHUNK_TASK
from tests.waiting import eventually
from workers.celery_pool import ChunkPool, chunk_pool, gated_cycle
from workers.engine import EngineCapacity
from workers.engine_worker import refuse_other_pools
from workers.room import Holding, Room


class Bench:
    """A started pool on a room for four requests."""

    def __init__(self) -> None:
        self.room = Room(EngineCapacity(requests=4, tokens=1000))
        self.holdings: dict[str, Holding] = {}
        self.cut_offs = 0
        self.pool: ChunkPool = chunk_pool(self.room, self.holdings, self._cut_off)(limit=4)
        self.pool.start()

    def _cut_off(self) -> None:
        self.cut_offs += 1

    def apply(
        self,
        target: Callable[..., Any],
        task_id: str,
        *,
        requests: int = 1,
        name: str = CHUNK_TASK,
        as_text: bool = False,
    ) -> None:
        """Hand a message to the pool as Celery's consumer does."""
        text = json.dumps([["batch_1", 0, requests, 10], {}, {}])
        headers: dict[str, Any] = {}
        body = text if as_text else text.encode()
        args = (name, task_id, headers, body, "application/json", "utf-8")
        self.pool.apply_async(target, args, callback=lambda *_: None, accept_callback=lambda *_: None)

    @property
    def held(self) -> int:
        return self.room._requests


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.pool.stop()


def test_a_chunk_counts_from_the_moment_it_arrives_until_it_ends(bench: Bench) -> None:
    may_end = threading.Event()
    bench.apply(lambda *_, **__: may_end.wait(20), "a", requests=6)
    assert (bench.held, bench.room.is_open) == (6, False), "counted before the thread has started"
    assert list(bench.holdings) == ["a"]
    may_end.set()
    eventually(lambda: bench.held == 0)
    assert (bench.holdings, bench.room.is_open) == ({}, True)


def test_a_chunk_counts_for_less_as_its_requests_finish(bench: Bench) -> None:
    may_end = threading.Event()
    bench.apply(lambda *_, **__: may_end.wait(20), "a", requests=6)
    bench.holdings["a"].give_back(4)
    assert bench.held == 2
    may_end.set()
    eventually(lambda: bench.held == 0)


@pytest.mark.parametrize("as_text", [True, False])
def test_the_size_of_a_chunk_is_read_from_text_and_from_bytes(bench: Bench, as_text: bool) -> None:
    may_end = threading.Event()
    bench.apply(lambda *_, **__: may_end.wait(20), "a", requests=3, as_text=as_text)
    assert bench.held == 3
    may_end.set()
    eventually(lambda: bench.held == 0)


def test_a_task_that_fails_gives_its_room_back(bench: Bench) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("a bug in the task")

    bench.apply(fail, "a", requests=5)
    eventually(lambda: bench.held == 0)
    assert bench.holdings == {}


def test_other_tasks_need_no_room(bench: Bench) -> None:
    may_end = threading.Event()
    bench.apply(lambda *_, **__: may_end.wait(20), "a", name="gristmill.tick")
    assert (bench.held, bench.holdings) == (0, {})
    may_end.set()


def test_being_terminated_gives_everything_back_at_once(bench: Bench) -> None:
    may_end = threading.Event()
    bench.apply(lambda *_, **__: may_end.wait(20), "a")
    bench.pool.on_terminate()
    assert bench.cut_offs == 1
    may_end.set()


def test_queues_are_asked_in_their_order_and_not_at_all_without_room() -> None:
    room = Room(EngineCapacity(requests=4, tokens=1000))
    cycle = gated_cycle(room)(["m.urgent", "m.normal", "m.bulk"])
    assert cycle.consume(3) == ["m.urgent", "m.normal", "m.bulk"]
    cycle.rotate("m.urgent")
    assert cycle.consume(3) == ["m.urgent", "m.normal", "m.bulk"], "the order is strict"
    holding = room.take(5, 10)
    assert cycle.consume(3) == []
    holding.give_back(1)
    assert cycle.consume(3) == ["m.urgent", "m.normal", "m.bulk"]


def test_a_worker_can_tell_its_settings_with_the_order_of_its_queues_among_them() -> None:
    order = gated_cycle(Room(EngineCapacity(requests=4, tokens=1000)))
    assert dumps({"queue_order_strategy": order}) == '{"queue_order_strategy": "priority, gated by room"}'


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        ("prefork", "may not start the processes that vLLM needs"),
        ("gevent", "deadlock with the engine's event loop"),
        ("solo", "only `gristmill worker` starts the engine"),
        ("threads", "only `gristmill worker` starts the engine"),
        (TaskPool, "only `gristmill worker` starts the engine"),
    ],
)
def test_a_worker_without_an_engine_refuses_to_start(pool: object, reason: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=reason):
        refuse_other_pools(SimpleNamespace(pool_cls=pool))


def test_our_own_pool_may_start() -> None:
    room = Room(EngineCapacity(1, 1))
    refuse_other_pools(SimpleNamespace(pool_cls=chunk_pool(room, {}, lambda: None)))
