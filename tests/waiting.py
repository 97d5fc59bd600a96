"""Waiting for what another thread is about to do, without guessing how long it takes."""

import time
from collections.abc import Callable

LONGEST_S = 20.0
"""Longer than anything takes on a machine that works."""


def eventually(
    condition: Callable[[], bool],
    what: str = "it",
    *,
    longest_s: float = LONGEST_S,
    pause_s: float = 0.005,
) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    deadline = time.monotonic() + longest_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {longest_s:g} s: {what}"
        time.sleep(pause_s)
