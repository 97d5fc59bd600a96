"""A process whose clock is wrong, as on a host whose clock is."""

import os
from pathlib import Path

OFFSET_VARIABLE = "CHAOS_CLOCK_OFFSET_S"

_SITE = Path(__file__).parent / "wrong_clock"
"""On the path of such a process; Python imports its `sitecustomize` before anything else."""


def clock_environment(offset_s: int) -> dict[str, str]:
    """Variables of a process whose `time.time` is wrong by so many seconds.

    What asks the operating system by another way, such as `datetime.now`, sees the true time: less than a
    wrong clock does, but all that Celery, kombu and Gristmill reckon with.
    """
    if offset_s == 0:
        return {}
    path = os.pathsep.join(filter(None, (str(_SITE), os.environ.get("PYTHONPATH"))))
    return {OFFSET_VARIABLE: str(offset_s), "PYTHONPATH": path}
