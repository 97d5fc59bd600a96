"""The fast look at a good line and the careful look at the others never disagree."""

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.validation import Validator, ValidLine
from tests.samples import ENDPOINT

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)

SPICE: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, 1, "", "1", "a\x00", "sim", "other", "POST", ENDPOINT, "http://x", [], {}]
)

NUMBERS = st.sampled_from(
    ["0", "-0", "1e5", "1e999", "-1e999", "1e-999", "9" * 30, "9" * 400, "1." + "9" * 400]
)
"""Numbers as they can stand in a file, some beyond what a double holds."""

BODIES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.just("sim") | SPICE,
        "stream": SPICE,
        "max_tokens": SPICE | st.integers(),
        "messages": JSON_VALUES,
        "x": JSON_VALUES,
    },
)

LINES = st.fixed_dictionaries(
    {},
    optional={
        "custom_id": st.text(max_size=5) | SPICE,
        "method": st.just("POST") | SPICE,
        "url": st.just(ENDPOINT) | SPICE,
        "body": BODIES | BODIES | SPICE,
        "extra": JSON_VALUES,
    },
)


def agree(line: bytes, model: str | None) -> None:
    """Whatever the fast path accepts the slow path does, and the other way round."""
    # Each a fresh one that has seen a good line, as in the middle of a file.
    for seen in ((), (1,)):
        fast, slow = (Validator(ENDPOINT, model, {"sim"}.__contains__) for _ in range(2))
        for number in seen:
            for each in (fast, slow):
                each.check(number, _joined([("custom_id", '"first"'), *_GOOD[1:]]))
        checked = fast.check(2, line)
        assert checked == slow._inspect(2, line)
        assert isinstance(checked, ValidLine) or checked, "a line that is not accepted must have a fault"
        assert fast.model == slow.model


_GOOD = [
    ("custom_id", '"a"'),
    ("method", '"POST"'),
    ("url", json.dumps(ENDPOINT)),
    ("body", '{"model":"sim"}'),
]


def _joined(members: list[tuple[str, str]]) -> bytes:
    return ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in members) + "}").encode()


@settings(max_examples=200)
@given(line=LINES, model=st.sampled_from([None, "sim"]), ascii_only=st.booleans())
def test_both_paths_agree_on_any_object(line: dict[str, Any], model: str | None, ascii_only: bool) -> None:
    text = json.dumps(line, ensure_ascii=ascii_only)
    agree(text.encode("utf-8", errors="replace"), model)


@given(number=NUMBERS, name=st.sampled_from(["x", "max_tokens", "model", "stream"]))
@example(number="1e999", name="x")
def test_both_paths_agree_on_any_number_in_a_body(number: str, name: str) -> None:
    agree(_joined([*_GOOD[:3], ("body", f'{{"model":"sim","{name}":{number}}}')]), None)


@given(
    members=st.lists(
        st.sampled_from(_GOOD) | st.tuples(st.sampled_from([name for name, _ in _GOOD]), st.just("1")),
        min_size=4,
        max_size=8,
    )
)
@example(members=[("custom_id", "1"), *_GOOD])
@example(members=[("body", "1"), *_GOOD])
@example(members=[*_GOOD, ("body", "1")])
def test_both_paths_agree_on_names_given_twice(members: list[tuple[str, str]]) -> None:
    agree(_joined(members), None)


@given(line=st.binary(max_size=60))
def test_no_bytes_make_the_check_raise(line: bytes) -> None:
    agree(line, None)


@given(value=JSON_VALUES)
def test_no_json_makes_the_check_raise(value: Any) -> None:
    agree(json.dumps(value).encode(), None)


@given(depth=st.integers(1, 3000), opening=st.sampled_from(["[", '{"x":']))
@settings(max_examples=30)
def test_both_paths_agree_on_depth(depth: int, opening: str) -> None:
    closing = {"[": "]"}.get(opening, "}")
    nested = opening * depth + "1" + closing * depth
    agree(_joined([*_GOOD[:3], ("body", f'{{"model":"sim","x":{nested}}}')]), None)
