"""No process outlives the one that owns it: a thread that watches the parent and ends the process."""

import os
import signal
import threading
import time

PARENT_VARIABLE = "MILL_PARENT_PID"
"""Set by the supervisor for its children: the process they must not outlive."""

ENGINE_OWNER_VARIABLE = "MILL_ENGINE_OWNER_PID"
"""Set by a worker before it starts an engine: the worker's own pid."""

POLL_S = 0.5


def guard_child() -> None:
    """In a child of the supervisor: when the supervisor dies, kill this process's whole group.

    The group is the child's own, because the supervisor starts each child in a new session. What it was
    doing is redone from the database, so nothing is gained by ending it gently.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is not None:
        _watch(int(parent), kill_group=True)


def guard_engine_process() -> None:
    """vLLM plugin, loaded in every process of an engine: ends it when its parent is gone.

    Without it a killed worker leaves engine processes behind that hold the device.
    """
    owner = os.environ.get(ENGINE_OWNER_VARIABLE)
    if owner is None or int(owner) == os.getpid():
        return
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        os._exit(1)
    _watch(os.getppid(), kill_group=False)


def _watch(parent: int, *, kill_group: bool) -> None:
    def poll() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_S)
        if kill_group and os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=poll, name="orphan-guard", daemon=True).start()
