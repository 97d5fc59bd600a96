"""Plots as SVG, made on the server: a line over time, and bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.figures import Point

WIDTH, HEIGHT = 480, 170
LEFT, BOTTOM = 56, 24
"""Room for the numbers at the axes."""


@dataclass(frozen=True)
class Line:
    """Tokens per second over time, in coordinates of the drawing."""

    path: str
    area: str
    ticks: list[tuple[float, str]]
    """Height and label of each horizontal line."""
    ends: tuple[str, str]
    """Labels of the first and the last moment."""
    rows: list[tuple[str, float, int]]
    """The same as a table: time since the start, tokens/s, requests."""


@dataclass(frozen=True)
class Bar:
    """One bar."""

    x: float
    y: float
    width: float
    height: float
    label: str
    count: int


def speed_line(points: Sequence[Point]) -> Line | None:
    """Tokens a second over the course of a job; null before there is anything."""
    if not points:
        return None
    values = [(point.input_tokens + point.output_tokens) * 1000 / point.width_ms for point in points]
    top = _round_up(max(values))
    across, down = WIDTH - LEFT, HEIGHT - BOTTOM
    step = across / max(1, len(points) - 1)
    places = [(LEFT + index * step, down - value / top * (down - 8)) for index, value in enumerate(values)]
    if len(places) == 1:
        places.append((WIDTH, places[0][1]))
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    area = f"{path} L{places[-1][0]:.1f} {down} L{places[0][0]:.1f} {down} Z"
    begin = points[0].start_ms
    seconds = [(point.start_ms - begin) / 1000 for point in points]
    last = seconds[-1] + points[-1].width_ms / 1000
    return Line(
        path=path,
        area=area,
        ticks=[(down - share * (down - 8), f"{top * share:,.0f}") for share in (0.0, 0.5, 1.0)],
        ends=("0:00", _clock(last)),
        rows=[
            (_clock(at), value, point.requests)
            for at, value, point in zip(seconds, values, points, strict=True)
        ],
    )


def latency_bars(counts: Mapping[str, int]) -> list[Bar]:
    """How many requests took how long, in buckets that double."""
    if not counts:
        return []
    bounds = sorted(int(bound) for bound in counts)
    every = []
    bound = bounds[0]
    while bound <= bounds[-1]:
        every.append(bound)
        bound *= 2
    most = max(counts.values())
    width = (WIDTH - LEFT) / max(len(every), 6)
    down = HEIGHT - BOTTOM
    bars = []
    for index, bound in enumerate(every):
        count = counts.get(str(bound), 0)
        height = count / most * (down - 16)
        bars.append(
            Bar(LEFT + index * width + 2, down - height, width - 4, height, f"≤ {_span(bound)}", count)
        )
    return bars


def _round_up(value: float) -> float:
    """The next number that is good at the end of an axis."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    for factor in (1, 2, 5, 10):
        if value <= scale * factor:
            return scale * factor
    return scale * 10


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _span(milliseconds: int) -> str:
    if milliseconds < 1_000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1_000
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
