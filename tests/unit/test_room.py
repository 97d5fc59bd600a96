"""Admission: what a worker holds is counted exactly, and room that opens is announced once."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine import EngineCapacity
from workers.room import AHEAD, Holding, Room

CHUNKS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 200)), max_size=12)


def room_for(requests: int, tokens: int) -> Room:
    """A room of exactly this size."""
    return Room(EngineCapacity(int(requests / AHEAD), int(tokens / AHEAD)))


def test_a_worker_holds_somewhat_more_than_its_engine() -> None:
    room = Room(EngineCapacity(requests=4, tokens=1000))
    room.take(4, 0)
    assert room.is_open, "the engine is full, the room is not"
    room.take(1, 0)
    assert not room.is_open


@pytest.mark.parametrize(("requests", "tokens"), [(5, 0), (0, 1250), (9, 9000)])
def test_either_limit_closes_a_room(requests: int, tokens: int) -> None:
    room = Room(EngineCapacity(requests=4, tokens=1000))
    room.take(requests, tokens)
    assert not room.is_open


def test_a_chunk_is_taken_while_there_is_any_room() -> None:
    room = room_for(5, 1000)
    room.take(4, 0)
    assert room.is_open
    room.take(1000, 0)
    assert not room.is_open


def test_room_that_opens_is_announced_once() -> None:
    room = room_for(5, 10_000)
    opened: list[bool] = []
    room.on_open = lambda: opened.append(room.is_open)
    holding = room.take(7, 70)
    holding.give_back(1)
    holding.give_back(1)
    assert opened == [], "it is still full"
    holding.give_back(1)
    assert opened == [True]
    holding.give_back_all()
    assert opened == [True], "it was open already"


def test_a_holding_gives_back_no_more_than_it_has() -> None:
    room = room_for(5, 1000)
    holding = room.take(3, 30)
    holding.give_back(2)
    holding.give_back(2)
    holding.give_back(2)
    holding.give_back_all()
    assert (room._requests, room._tokens) == (0, 0)


@given(chunks=CHUNKS, data=st.data())
def test_counts_are_exact_and_never_negative(chunks: list[tuple[int, int]], data: st.DataObject) -> None:
    room = room_for(10, 100)
    opened = 0

    def on_open() -> None:
        nonlocal opened
        opened += 1

    room.on_open = on_open
    closed_to_open = 0
    holdings: list[Holding] = []
    for requests, tokens in chunks:
        holdings.append(room.take(requests, tokens))
        given_back = data.draw(st.lists(st.tuples(st.sampled_from(holdings), st.integers(0, 25)), max_size=4))
        for holding, count in given_back:
            was_open = room.is_open
            holding.give_back(count)
            closed_to_open += room.is_open and not was_open
            assert room._requests == sum(each._requests for each in holdings)
            assert room._tokens == sum(each._tokens for each in holdings)
            assert all(each._requests >= 0 and each._tokens >= 0 for each in holdings)
    assert opened == closed_to_open
    for holding in holdings:
        holding.give_back(holding._requests)
        holding.give_back_all()
    assert room._requests == 0


@pytest.fixture
def _threads_switch_all_the_time() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_threads_switch_all_the_time")
def test_a_chunk_that_ends_while_its_requests_end_is_counted_back_once() -> None:
    # Requests end on the engine's thread, chunks on that of the pool: of a cancelled job both at once.
    room = room_for(1000, 100_000)

    def end_requests(holding: Holding) -> None:
        for _ in range(40):
            holding.give_back(1)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2000):
            holding = room.take(40, 400)
            requests = pool.submit(end_requests, holding)
            chunk = pool.submit(holding.give_back_all)
            requests.result()
            chunk.result()
            assert (room._requests, room._tokens) == (0, 0)
