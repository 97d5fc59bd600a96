"""A dead engine comes back in its place, a hopeless one ends the process, and nothing is taken meanwhile."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engines import WatchedHost
from tests.waiting import LONGEST_S, eventually
from workers import engine_care
from workers.engine import EngineCapacity, EngineDead, EngineRequest, EngineStartFailed
from workers.engine_care import MOST_DEATHS, EngineCare
from workers.room import Room

HELLO = EngineRequest("r", "/v1/completions", b"{}", 0)
DEADLY = EngineRequest("r", "/v1/completions", b'{"prompt": "SIMULATE-DEATH"}', 0)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_care, "FIRST_PAUSE_S", 0.001)


@pytest.fixture
def host() -> Iterator[WatchedHost]:
    host = WatchedHost()
    yield host
    host.close()


class Bench:
    """A care on an engine, and the results that are there."""

    def __init__(self, host: WatchedHost) -> None:
        self.host = host
        self.room = Room(host.capacity)
        self.stopping = threading.Event()
        self.results = 0
        self.care = EngineCare(host, self.room, self.stopping, lambda: self.results)

    def kill(self) -> None:
        with pytest.raises(EngineDead):
            self.host.submit(self.host.run(DEADLY)).result()


def test_a_dead_engine_answers_nobody_until_it_is_back(host: WatchedHost) -> None:
    bench = Bench(host)
    bench.kill()
    entered = len(host.engine.entered)
    with pytest.raises(EngineDead):
        host.submit(host.run(HELLO)).result()
    assert len(host.engine.entered) == entered
    assert bench.care.bring_back()
    assert host.submit(host.run(HELLO)).result().status_code == 200


def test_an_engine_that_lives_is_left_alone(host: WatchedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "restart", pytest.fail)
    assert Bench(host).care.bring_back()


def test_many_that_find_it_dead_restart_it_once_and_take_nothing_meanwhile(
    host: WatchedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(host)
    bench.kill()
    restarts: list[bool] = []
    go_on = threading.Event()
    restart = host.restart

    def slow_restart() -> None:
        restarts.append(bench.room.is_open)
        assert go_on.wait(LONGEST_S)
        restart()

    monkeypatch.setattr(host, "restart", slow_restart)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(bench.care.bring_back) for _ in range(4)]
        eventually(lambda: len(restarts) == 1)
        go_on.set()
        assert all(future.result(LONGEST_S) for future in waiting)
    assert restarts == [False]
    assert bench.room.is_open


def test_an_engine_that_dies_again_and_again_without_a_result_ends_the_process(host: WatchedHost) -> None:
    bench = Bench(host)
    for _ in range(MOST_DEATHS):
        bench.kill()
        assert bench.care.bring_back()
    bench.kill()
    assert not bench.care.bring_back()


def test_results_between_deaths_are_a_reason_to_go_on(host: WatchedHost) -> None:
    bench = Bench(host)
    for _ in range(3 * MOST_DEATHS):
        bench.kill()
        bench.results += 1
        assert bench.care.bring_back()


def test_an_engine_that_does_not_start_again_is_tried_again_and_given_up(
    host: WatchedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(host)
    bench.kill()
    tries: list[int] = []

    async def refuse() -> EngineCapacity:
        tries.append(1)
        raise EngineStartFailed("no memory")

    monkeypatch.setattr(host.engine, "start", refuse)
    assert not bench.care.bring_back()
    assert len(tries) == MOST_DEATHS


def test_a_stopping_worker_restarts_nothing(host: WatchedHost) -> None:
    bench = Bench(host)
    bench.kill()
    bench.stopping.set()
    assert bench.care.bring_back()
    assert host.is_dead
