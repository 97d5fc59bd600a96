"""Changing the priority of a request that is already in a vLLM engine.

All names here that begin with `core.`, `scheduler.` or `output_processor.` are private to vLLM: this is the
only module that uses them, and a test on a real engine fails when an upgrade moves them.
"""

import re
import sys
from typing import Any

UTILITY = "gristmill_update_priority"
"""Name of the method that the engine's core process gets; vLLM calls methods of its core by name."""


def install_in_engine_core() -> None:
    """vLLM plugin: adds the method where the scheduler lives, and nothing anywhere else."""
    core = sys.modules.get("vllm.v1.engine.core")
    if core is not None:
        setattr(core.EngineCore, UTILITY, _update_priority)


async def update_priority(engine: Any, request_id: str, priority: int) -> None:
    """Change the priority of everything that one of our requests became in the engine.

    Runs between two steps of the engine; waiting requests are queued anew, running ones go on.
    """
    # The serving layer puts a kind before our id, and a number behind it for each prompt of several.
    ours = re.compile(rf"[a-z]+[-_]{re.escape(request_id)}(-\d+)?")
    known = engine.output_processor.external_req_ids
    internal_ids = [
        internal for external, ids in known.items() if ours.fullmatch(external) for internal in ids
    ]
    if internal_ids:
        await engine.engine_core.call_utility_async(UTILITY, internal_ids, priority)


def _update_priority(core: Any, internal_ids: list[str], priority: int) -> int:
    """In the core process. Returns how many of the requests are still there."""
    scheduler = core.scheduler
    found = [scheduler.requests[each] for each in internal_ids if each in scheduler.requests]
    for request in found:
        queues = [queue for queue in (scheduler.waiting, scheduler.kv_holding_waiting) if request in queue]
        # Out before the change: the queue is a heap that is ordered by it.
        for queue in queues:
            queue.remove_request(request)
        request.priority = priority
        for queue in queues:
            queue.add_request(request)
    return len(found)
