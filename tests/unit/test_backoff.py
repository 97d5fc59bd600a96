"""Waiting times between attempts: growing, bounded, spread."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.backoff import backoff_s, jittered


@given(failures=st.integers(1, 10_000), first=st.floats(0.01, 1), longest=st.floats(1, 100))
def test_waits_grow_from_the_first_to_the_longest(failures: int, first: float, longest: float) -> None:
    assert backoff_s(1, first, longest) == first
    assert first <= backoff_s(failures, first, longest) <= backoff_s(failures + 1, first, longest) <= longest


@given(st.floats(0, 100))
def test_jitter_shortens_a_wait_by_half_at_most(seconds: float) -> None:
    assert seconds / 2 <= jittered(seconds) <= seconds


def test_jitter_spreads() -> None:
    assert len({jittered(1.0) for _ in range(10)}) > 1
