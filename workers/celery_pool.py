"""Celery's threads pool, as a worker with an engine needs it: admission by room, and a clean end."""

import json
from collections.abc import Callable
from typing import Any

from celery.concurrency.thread import ApplyResult, TaskPool
from kombu.utils.scheduling import priority_cycle

from tasks.dispatch import CHUNK_TASK
from workers.room import Holding, Room


class ChunkPool(TaskPool):
    """Counts each chunk against the room the moment it arrives, on the thread that fetches messages.

    Counting there, before the next fetch, is what keeps a burst of messages from overshooting.
    """

    room: Room
    holdings: dict[str, Holding]
    """Task id to what it holds."""
    on_cut_off: Callable[[], None]

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> ApplyResult:
        """Start a task on a thread, holding its room until it ends in whatever way."""
        # args: task name, task id, headers, body, content type, content encoding.
        assert args is not None
        task_id = args[1]
        if args[0] == CHUNK_TASK:
            _, _, requests, tokens = json.loads(bytes(args[3]) if not isinstance(args[3], str) else args[3])[
                0
            ]
            self.holdings[task_id] = self.room.take(requests, tokens)
        result = super().on_apply(target, args, kwargs, callback, accept_callback, **options)
        result.f.add_done_callback(lambda _: self._end(task_id))
        return result

    def _end(self, task_id: str) -> None:
        holding = self.holdings.pop(task_id, None)
        if holding is not None:
            holding.give_back_all()

    def terminate_job(self, pid: int, signal: str | None = None) -> None:
        """Threads cannot be killed: chunks end by themselves when their job or worker is told to stop."""

    def on_terminate(self) -> None:
        """The second signal: everything goes back now."""
        self.on_cut_off()
        self.executor.shutdown(wait=False, cancel_futures=True)


def chunk_pool(room: Room, holdings: dict[str, Holding], on_cut_off: Callable[[], None]) -> type[ChunkPool]:
    """A pool class tied to one worker's room: Celery makes the pool itself, from a class."""
    return type(
        "BoundChunkPool",
        (ChunkPool,),
        {"room": room, "holdings": holdings, "on_cut_off": staticmethod(on_cut_off)},
    )


def gated_cycle(room: Room) -> type[priority_cycle]:
    """The order in which queues are asked for messages: as named, and none while there is no room."""

    class GatedCycle(priority_cycle):
        def consume(self, n: int) -> list[str]:
            return super().consume(n) if room.is_open else []

        @classmethod
        def __json__(cls) -> str:
            # A worker that is asked for its settings answers with this class among them.
            return "priority, gated by room"

    return GatedCycle
