"""How values look on pages: numbers, times, lengths of time. Jinja filters, all of them."""

from datetime import UTC, datetime

from flask import Flask
from markupsafe import Markup, escape

from tasks.durations import human_duration

NOTHING = "\N{EN DASH}"
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"))


def number(value: float | None, digits: int = 0) -> str:
    """With a comma for thousands; a dash for none."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def rate(value: float) -> str:
    """A number per second, with as many digits as say something."""
    return number(value, 0 if value >= 10 or value == 0 else 1)


def percent(share: float) -> str:
    """A share as a whole percentage; never 100 before it is all."""
    return f"{int(share * 100)}%"


def size(value: int) -> str:
    """Bytes for people."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:,.1f} {name}"
    return f"{value} B"


def left(seconds: float | None) -> str:
    """Time that is left."""
    return NOTHING if seconds is None else human_duration(seconds)


def ago(at: datetime | None, now: datetime | None = None) -> Markup:
    """How long ago, or in how long, as a `time` element with the exact moment."""
    if at is None:
        return escape(NOTHING)
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    text = "just now"
    for unit, name in _AGES:
        if abs(seconds) >= unit:
            text = (
                f"{int(seconds // unit)} {name} ago" if seconds > 0 else f"in {round(-seconds / unit)} {name}"
            )
            break
    exact = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), exact, text)


def register_filters(app: Flask) -> None:
    """Make them known to the templates."""
    for function in (number, rate, percent, size, left, ago):
        app.jinja_env.filters[function.__name__] = function
