"""How values become text in prompts, and what templates may do to them on the way."""

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jinja2 import StrictUndefined

MAX_VALUE_CHARACTERS = 16 << 20
"""Longest text that a filter may make: more than any row has, and no load for the memory."""


def text_of(value: Any) -> str:
    """A value as it stands in a prompt: text as it is, nothing for null, all else as JSON."""
    if isinstance(value, str):
        return str(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, StrictUndefined):
        return str(value)  # raises, with the name of what is missing
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _no_longer_than_allowed(characters: int) -> None:
    if characters > MAX_VALUE_CHARACTERS:
        raise ValueError(f"a filter would make a text of more than {MAX_VALUE_CHARACTERS:,} characters")


def _bounded(change: Callable[[Any], str]) -> Callable[[Any], str]:
    """For filters that lengthen a text by a small factor at most."""

    def changed(value: Any) -> str:
        text = change(value)
        _no_longer_than_allowed(len(text))
        return text

    return changed


def _of_text(change: Callable[[str], str]) -> Callable[[Any], str]:
    return _bounded(lambda value: change(text_of(value)))


def _join(value: Any, separator: Any = "") -> str:
    if not isinstance(value, list):
        raise TypeError("'join' needs an array")
    texts, between = [text_of(item) for item in value], text_of(separator)
    _no_longer_than_allowed(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


def _replace(value: Any, old: Any, new: Any) -> str:
    text, before, after = text_of(value), text_of(old), text_of(new)
    _no_longer_than_allowed(len(text) + text.count(before) * max(0, len(after) - len(before)))
    return text.replace(before, after)


def _truncate(value: Any, length: Any = 255) -> str:
    if type(length) is not int:
        raise TypeError("'truncate' needs a number of characters")
    return text_of(value)[: max(0, length)]


def _default(value: Any, instead: Any = "") -> Any:
    return instead if isinstance(value, StrictUndefined) or value is None else value


def _item(place: int) -> Callable[[Any], Any]:
    def at(value: Any) -> Any:
        if not isinstance(value, list | str):
            raise TypeError("'first' and 'last' need an array or a string")
        return value[place] if value else ""

    return at


def _length(value: Any) -> int:
    if not isinstance(value, list | dict | str):
        raise TypeError("'length' needs an array, an object or a string")
    return len(value)


class FilterSpec(NamedTuple):
    """A filter, and how many arguments it takes beside the value."""

    work: Callable[..., Any]
    least: int = 0
    most: int = 0


FILTERS: dict[str, FilterSpec] = {
    "default": FilterSpec(_default, most=1),
    "first": FilterSpec(_item(0)),
    "join": FilterSpec(_join, most=1),
    "last": FilterSpec(_item(-1)),
    "length": FilterSpec(_length),
    "lower": FilterSpec(_of_text(str.lower)),
    "replace": FilterSpec(_replace, 2, 2),
    "title": FilterSpec(_of_text(str.title)),
    "tojson": FilterSpec(_bounded(_json)),
    "trim": FilterSpec(_of_text(str.strip)),
    "truncate": FilterSpec(_truncate, most=1),
    "upper": FilterSpec(_of_text(str.upper)),
}
"""What may be done to a value. None of them makes a text of more than `MAX_VALUE_CHARACTERS`."""
