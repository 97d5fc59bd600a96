"""Field types that several bodies and queries share, each with its rule."""

import math
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from tasks.durations import parse_duration

MAX_INTEGER = 2**63 - 1
"""The largest number that databases and encoders take."""

LAST_YEAR = 9000
"""Moments after it, moved to another time zone, may be beyond what a calendar has."""

TEN_YEARS_S = 10 * 365 * 86_400


class Asked(BaseModel):
    """Base of what clients send: a field that nobody knows is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class Asking(BaseModel):
    """Base of queries, whose values all come as text."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain NUL characters")
    return text


def _duration(text: str) -> str:
    parse_duration(text)
    return text


def _storable(value: Any) -> Any:
    """JSON allows numbers that no database and no engine takes."""
    match value:
        case dict():
            for part in value.values():
                _storable(part)
        case list():
            for part in value:
                _storable(part)
        case int() if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise ValueError("must not contain numbers beyond 64 bits")
        case float() if not math.isfinite(value):
            raise ValueError("must not contain infinite numbers or NaN")
    return value


def _showable(at: datetime) -> datetime:
    if at.year > LAST_YEAR:
        raise ValueError(f"must not be after the year {LAST_YEAR}")
    return at


Text = Annotated[str, AfterValidator(_without_nul)]
"""Text that a database can hold."""

Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,5}[smhd]$"), AfterValidator(_duration)]
"""A number and a unit: `90s`, `30m`, `24h`, `7d`."""

Moment = Annotated[AwareDatetime, AfterValidator(_showable)]
"""ISO 8601 with a time zone."""

JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_storable)]

Metadata = Annotated[
    dict[
        Annotated[Text, StringConstraints(min_length=1, max_length=64)],
        Annotated[Text, StringConstraints(max_length=512)],
    ],
    Field(max_length=16),
]
"""Up to 16 pairs of the client's own."""

ExpirySeconds = Annotated[int, Field(ge=3_600, le=TEN_YEARS_S)]
PageLimit = Annotated[int, Field(ge=1, le=100)]
