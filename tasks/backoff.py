"""How long to wait before something that failed is tried again."""

import random


def backoff_s(failures: int, first_s: float, longest_s: float) -> float:
    """Seconds after so many failures in a row (from 1): twice as long each time, up to a cap."""
    return min(longest_s, first_s * 2.0 ** (min(failures, 64) - 1))


def jittered(seconds: float) -> float:
    """Between half of it and all of it, so that those who failed together do not come back together."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311
