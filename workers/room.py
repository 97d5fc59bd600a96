"""Admission: how much work a worker holds, and when it may take more."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workers.engine import EngineCapacity

AHEAD = 1.25
"""How much more than the engine's capacity a worker holds, so that a freed seat is filled at once."""


class Holding:
    """One chunk's share of the room; shrinks as its requests finish."""

    def __init__(self, room: "Room", requests: int, tokens: int) -> None:
        self._room = room
        self._requests = requests
        self._tokens = tokens
        # Requests finish on the engine's loop while the chunk may end on a thread of the pool.
        self._lock = threading.Lock()

    def give_back(self, requests: int) -> None:
        """These many requests are finished."""
        with self._lock:
            requests = min(requests, self._requests)
            if requests == 0:
                return
            tokens = self._tokens * requests // self._requests
            self._requests -= requests
            self._tokens -= tokens
        self._room.give(requests, tokens)

    def give_back_all(self) -> None:
        """The chunk is finished, or goes elsewhere."""
        with self._lock:
            requests, tokens = self._requests, self._tokens
            self._requests = self._tokens = 0
        if requests:
            self._room.give(requests, tokens)


class Room:
    """Requests and estimated tokens that are held, against the capacity. Thread-safe.

    A chunk is taken while there is any room, not only when it fits: the engine then always has more to
    do than it can start, by at most one chunk.
    """

    def __init__(self, capacity: EngineCapacity) -> None:
        self._most_requests = int(capacity.requests * AHEAD)
        self._most_tokens = int(capacity.tokens * AHEAD)
        self._requests = 0
        self._tokens = 0
        self._shut = 0
        self._lock = threading.Lock()
        self.on_open: Callable[[], None] = lambda: None
        """Called, from any thread, when a full room has room again."""

    @property
    def is_open(self) -> bool:
        """Whether another chunk may be taken."""
        return not self._shut and self._requests < self._most_requests and self._tokens < self._most_tokens

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Nothing more is taken while the block runs, however much room there is."""
        with self._lock:
            self._shut += 1
        try:
            yield
        finally:
            with self._lock:
                self._shut -= 1
                opened = self.is_open
            if opened:
                self.on_open()

    def take(self, requests: int, tokens: int) -> Holding:
        """Hold a chunk's worth."""
        with self._lock:
            self._requests += requests
            self._tokens += tokens
        return Holding(self, requests, tokens)

    def give(self, requests: int, tokens: int) -> None:
        """Free a part of a holding."""
        with self._lock:
            was_open = self.is_open
            self._requests -= requests
            self._tokens -= tokens
            opened = self.is_open and not was_open
        if opened:
            self.on_open()
