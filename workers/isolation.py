"""Requests that take the engine with them: how the one among many is found, so that it fails alone.

A chunk counts how often it was started. The first starts run as always. When the engine has died under all of
them, the chunk is a suspect: its requests go through the engine in small groups with nothing else in it, in
their planned order, each group recorded before the next one starts. If the engine dies again, the next start
runs requests one by one, and each is noted before it starts. Under which the engine dies then, that is the
culprit. A worker that vanishes with it proves less, because people kill workers too: that takes two of them.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tasks.planned_file import PlannedRequest

SUSPECT_GROUPS = 16
"""Groups that a suspect chunk is cut into at first."""


def groups_to_run(
    requests: Sequence[PlannedRequest], attempt: int, max_attempts: int
) -> list[Sequence[PlannedRequest]] | None:
    """The groups that must run alone, one after the other; null when the chunk is no suspect."""
    if attempt < max_attempts - 1:
        return None
    size = 1 if attempt >= max_attempts else -(-len(requests) // SUSPECT_GROUPS)
    return [requests[start : start + size] for start in range(0, len(requests), size)]


MOST_STARTS_ALONE = 2
"""Starts of a request with nothing else in the engine that nobody saw end: then it is the culprit."""


def attempts_after_verdict(max_attempts: int) -> int:
    """The count that a chunk goes on with when its culprit is found: still a suspect, for the next one."""
    return max_attempts - 2


class Seats:
    """How many requests may be in the engine at a time. Belongs to the engine's event loop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._alone = asyncio.Lock()

    async def take(self) -> None:
        """Wait for a seat."""
        await self._free.acquire()

    def give_back(self) -> None:
        """Leave a seat."""
        self._free.release()

    @asynccontextmanager
    async def all_taken(self) -> AsyncIterator[None]:
        """Wait until the engine is empty and keep everybody else out of it."""
        taken = 0
        # One at a time, or two would wait for each other's half of the seats.
        async with self._alone:
            try:
                while taken < self._count:
                    await self._free.acquire()
                    taken += 1
                yield
            finally:
                for _ in range(taken):
                    self._free.release()
