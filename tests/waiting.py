"""Waiting for what another thread is about to do, without guessing how long it takes."""

import time
from collections.abc import Callable

LONGEST_S = 20.0
"""Longer than anything takes on a machine that works."""


def eventually(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)
