"""Shifts the clock of the process that has this folder on its path; for tests only."""

import os
import time

_offset_s = int(os.environ.get("CHAOS_CLOCK_OFFSET_S", "0"))
_true_time = time.time
_true_time_ns = time.time_ns


def _wrong_time() -> float:
    return _true_time() + _offset_s


def _wrong_time_ns() -> int:
    return _true_time_ns() + _offset_s * 1_000_000_000


time.time = _wrong_time
time.time_ns = _wrong_time_ns
