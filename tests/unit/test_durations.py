"""Lengths of time as people write and read them."""

import pytest

from tasks.durations import human_duration, human_window, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1_800), ("24h", 86_400), ("7d", 604_800), ("999999d", 86_399_913_600)],
)
def test_a_number_and_a_unit_are_seconds(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "24", "h", "0h", "-1h", "1.5h", "1 h", "1w", "24H", "٢٤h", "1000000s", "24h\n"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s, 30m, 24h or 7d"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [1, 59, 60, 90, 3_600, 5_400, 86_400, 604_800])
def test_what_is_written_is_read_as_the_same(seconds: int) -> None:
    assert parse_duration(human_window(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (59.6, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3_599, "59 min 59 s"),
        (7_260, "2 h 01 min"),
    ],
)
def test_people_read_as_few_parts_as_make_sense(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text
