"""What a request line must be, case by case."""

import json
from typing import Any

import pytest

from tasks.errors import LineFault
from tasks.lines import BadLine
from tasks.validation import MAX_CUSTOM_ID_CHARACTERS, Validator, ValidLine, first_named_model
from tests.samples import ENDPOINT, request_line

GOOD: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": ENDPOINT,
    "body": {"model": "sim", "messages": []},
}


def validator(model: str | None = None) -> Validator:
    return Validator(ENDPOINT, model, {"sim", "other"}.__contains__)


def line_with(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def line_without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


def raw_body(body: str) -> bytes:
    return b'{"custom_id":"a","method":"POST","url":"%s","body":%s}' % (ENDPOINT.encode(), body.encode())


def found(line: bytes | BadLine, model: str | None = None) -> list[tuple[str, str | None]]:
    """(code, param) of each fault of a line, or nothing for a good line."""
    checked = validator(model).check(7, line)
    if isinstance(checked, ValidLine):
        return []
    assert checked, "a line without a request must say why"
    assert all(fault.line == 7 and fault.message for fault in checked)
    return [(fault.code, fault.param) for fault in checked]


NOT_OBJECTS: list[Any] = [None, [], "text", 1, 1.5, True]
NOT_IDS: list[Any] = [None, 1, 1.0, True, [], {}, "", "a\nb", "\x00", "\x7f", "\x85"]
NOT_FALSE: list[Any] = [True, 1, 0, "false", []]
NOT_STRINGS: list[Any] = [1, True, [], {}]

JSON_FAULT = [("invalid_json_line", None)]


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        # What the line reader could not read.
        (BadLine.TOO_LONG, [("line_too_long", None)]),
        (BadLine.NOT_UTF8, [("invalid_encoding", None)]),
        # Not JSON.
        (b"{", JSON_FAULT),
        (b"hello", JSON_FAULT),
        (b"{'custom_id': 'a'}", JSON_FAULT),
        (line_with() + b",", JSON_FAULT),
        (line_with() + line_with(), JSON_FAULT),
        (b"\xef\xbb\xbf" + line_with(), JSON_FAULT),
        (line_with().replace(b'"a"', b"NaN"), JSON_FAULT),
        (raw_body('{"model":"sim","temperature":NaN}'), JSON_FAULT),
        (raw_body('{"model":"sim","temperature":Infinity}'), JSON_FAULT),
        (raw_body('{"model":"sim","temperature":01}'), JSON_FAULT),
        (raw_body('{"model":"sim","prompt":"\t"}'), JSON_FAULT),
        # Half a surrogate pair is no character.
        (raw_body('{"model":"sim","prompt":"\\ud800"}'), JSON_FAULT),
        (line_with().replace(b'"a"', b'"\\ud800"'), JSON_FAULT),
        # Nested deeper than anything would read again.
        (raw_body('{"model":"sim","x":' + "[" * 100_000 + "]" * 100_000 + "}"), JSON_FAULT),
        (b"[" * 100_000, JSON_FAULT),
        # JSON, but no object.
        (b"[]", JSON_FAULT),
        (b'"text"', JSON_FAULT),
        (b"1", JSON_FAULT),
        (b"null", JSON_FAULT),
        (b"true", JSON_FAULT),
        # Something is missing.
        (line_without("custom_id"), [("missing_required_parameter", "custom_id")]),
        (line_without("method"), [("missing_required_parameter", "method")]),
        (line_without("url"), [("missing_required_parameter", "url")]),
        (line_without("body"), [("missing_required_parameter", "body")]),
        # The body is no object.
        *[(line_with(body=body), [("invalid_request", "body")]) for body in NOT_OBJECTS],
        # Ids that are none.
        *[(line_with(custom_id=bad), [("invalid_custom_id", "custom_id")]) for bad in NOT_IDS],
        (line_with(custom_id="x" * (MAX_CUSTOM_ID_CHARACTERS + 1)), [("invalid_custom_id", "custom_id")]),
        # Methods and urls that are not the job's.
        *[(line_with(method=bad), [("invalid_method", "method")]) for bad in ("GET", "post", None, 1)],
        (line_with(url="/v1/completions"), [("url_mismatch", "url")]),
        (line_with(url=ENDPOINT + "/"), [("url_mismatch", "url")]),
        (line_with(url="https://api.openai.com" + ENDPOINT), [("invalid_url", "url")]),
        *[(line_with(url=bad), [("invalid_url", "url")]) for bad in (None, 1, "", ENDPOINT[1:])],
        # A batch has nobody to stream to.
        *[
            (line_with(body={"model": "sim", "stream": bad}), [("stream_not_supported", "body.stream")])
            for bad in NOT_FALSE
        ],
        # The model.
        (line_with(body={}), [("missing_required_parameter", "body.model")]),
        (line_with(body={"model": None}), [("missing_required_parameter", "body.model")]),
        (line_with(body={"model": "unknown"}), [("model_not_found", "body.model")]),
        (line_with(body={"model": ""}), [("model_not_found", "body.model")]),
        *[(line_with(body={"model": bad}), [("invalid_request", "body.model")]) for bad in NOT_STRINGS],
    ],
)
def test_a_faulty_line_says_what_is_wrong(
    line: bytes | BadLine, faults: list[tuple[str, str | None]]
) -> None:
    assert found(line) == faults


@pytest.mark.parametrize(
    "line",
    [
        line_with(),
        # Whatever else is there is nobody's business.
        line_with(extra={"deep": [1, 2]}),
        line_with(body={"model": "sim", "temperature": "hot", "stream_options": None}),
        # Streams that are none.
        line_with(body={"model": "sim", "stream": False}),
        line_with(body={"model": "sim", "stream": None}),
        # White space around, as CRLF leaves it.
        b" " + line_with() + b" \r",
        # Ids that look odd and are fine.
        *[line_with(custom_id=fine) for fine in ("1", " ", "é日本", "\u00a0", "\u2028", "😀", '"', "\\")],
        line_with(custom_id="x" * MAX_CUSTOM_ID_CHARACTERS),
        line_with(custom_id="日" * MAX_CUSTOM_ID_CHARACTERS),
        # Escaped names are the same names.
        line_with().replace(b'"custom_id"', b'"\\u0063ustom_id"'),
    ],
)
def test_a_good_line_is_accepted(line: bytes) -> None:
    assert found(line) == []


def test_every_fault_of_a_line_is_listed() -> None:
    line = line_with(custom_id=1, method="GET", url="http://x", body={"model": "unknown", "stream": True})
    assert [code for code, _ in found(line)] == [
        "invalid_custom_id",
        "invalid_method",
        "invalid_url",
        "stream_not_supported",
        "model_not_found",
    ]


def test_all_missing_names_are_listed() -> None:
    assert found(b"{}") == [
        ("missing_required_parameter", name) for name in ("custom_id", "method", "url", "body")
    ]


def test_a_body_is_kept_byte_for_byte() -> None:
    body = '{ "model":"sim",  "x":1.0, "é":"\\u00e9", "big":123456789012345678901234567890 }'
    checked = validator().check(1, raw_body(body))
    assert isinstance(checked, ValidLine)
    assert checked.body == body.encode()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_output_tokens": 6}, 6),
        # The newer name wins.
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        # Values that are no limit are the engine's to refuse.
        ({"max_tokens": 0}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 1.5, "max_output_tokens": 6}, 6),
    ],
)
def test_the_output_limit_is_read_where_it_is_usable(limits: dict[str, Any], expected: int | None) -> None:
    checked = validator().check(1, line_with(body={"model": "sim", **limits}))
    assert isinstance(checked, ValidLine)
    assert checked.max_output_tokens == expected


def test_the_first_line_decides_the_model_for_all() -> None:
    lines = validator()
    assert isinstance(lines.check(1, request_line("a", model="sim")), ValidLine)
    assert lines.model == "sim"
    faults = lines.check(2, request_line("b", model="other"))
    assert isinstance(faults, list)
    assert [fault.code for fault in faults] == ["model_mismatch"]
    without = lines.check(3, request_line("c", model=None))
    assert isinstance(without, list), "a file names its model in every line or in none"
    assert [fault.code for fault in without] == ["missing_required_parameter"]


def test_a_job_that_names_its_model_needs_none_in_its_lines() -> None:
    assert found(request_line("a", model=None), model="other") == []
    assert found(request_line("a", model="other"), model="other") == []
    assert found(request_line("a", model="sim"), model="other") == [("model_mismatch", "body.model")]


@pytest.mark.parametrize("first", [b"1", b"null", b"[]", b'{"x":1}'])
@pytest.mark.parametrize("name", [b"custom_id", b"method", b"url", b"body"])
def test_a_line_with_a_name_given_twice_does_not_vanish(name: bytes, first: bytes) -> None:
    # JSON leaves open which value counts: such a line is accepted, or it says why not.
    line = b'{"%s":%s,' % (name, first) + line_with()[1:]
    checked = validator().check(1, line)
    assert isinstance(checked, ValidLine) or checked


def test_the_model_of_a_file_is_that_of_its_first_line() -> None:
    assert first_named_model([b"\n\n" + request_line("a", model="sim") + b"\n{bad"], 1000) == "sim"
    for line in (b"{bad", b"", request_line("a", model=None), line_with(body={"model": 1}), b"\xff"):
        assert first_named_model([line], 1000) is None


def test_faults_are_values_with_their_line() -> None:
    checked = validator().check(3, b"[]")
    assert checked == [LineFault("invalid_json_line", "The line must be a JSON object, not an array.", 3)]
