"""Pauses of a worker under which the machine fails."""

import threading

import pytest

from tests.waiting import LONGEST_S, eventually
from workers import pause
from workers.engine import EngineCapacity
from workers.pause import Pause
from workers.room import Room


def test_nothing_is_taken_during_a_pause_and_a_stop_ends_it() -> None:
    room = Room(EngineCapacity(4, 100))
    stopping = threading.Event()
    paused = threading.Thread(target=Pause(room, stopping).take, args=("a full disk",))
    paused.start()
    eventually(lambda: not room.is_open)
    stopping.set()
    paused.join(LONGEST_S)
    assert room.is_open


def test_pauses_grow_until_something_works(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def no_wait(seconds: float) -> float:
        waits.append(seconds)
        return 0.0

    monkeypatch.setattr(pause, "jittered", no_wait)
    each = Pause(Room(EngineCapacity(4, 100)), threading.Event())
    for _ in range(3):
        each.take("a full disk")
    each.is_over()
    each.take("a full disk")
    assert waits == [0.5, 1.0, 2.0, 0.5]


def test_a_room_that_is_shut_twice_opens_when_both_are_over() -> None:
    room = Room(EngineCapacity(4, 100))
    seen: list[str | bool] = []
    room.on_open = lambda: seen.append("opened")
    with room.shut():
        with room.shut():
            seen.append(room.is_open)
        seen.append(room.is_open)
    assert seen == [False, False, "opened"]


def test_a_full_room_does_not_open_with_the_end_of_a_pause() -> None:
    room = Room(EngineCapacity(4, 100))
    holding = room.take(10, 10)
    opened: list[int] = []
    room.on_open = lambda: opened.append(1)
    with room.shut():
        pass
    assert opened == []
    holding.give_back_all()
    assert opened == [1]
