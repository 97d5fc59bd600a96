"""Lengths of time as people write and read them."""

import re

_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_duration(text: str) -> int:
    """Seconds in a text such as `90s`, `30m`, `24h` or `7d`.

    Raises:
        ValueError: it is no such text.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("must be a number and a unit, such as 90s, 30m, 24h or 7d")
    return int(match[1]) * _UNIT_S[match[2]]


def human_window(seconds: int) -> str:
    """A time such as `parse_duration` reads, in the largest unit that fits: hours rather than days."""
    for unit in ("h", "m"):
        if seconds and seconds % _UNIT_S[unit] == 0:
            return f"{seconds // _UNIT_S[unit]}{unit}"
    return f"{seconds}s"


def human_duration(seconds: float) -> str:
    """Hours, minutes and seconds, with as few parts as make sense."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
