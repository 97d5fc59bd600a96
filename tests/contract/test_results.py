"""Reading results back: order, pages and the shapes of OpenAI's lines."""

import json
from typing import Any

import pytest

from tasks import results
from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.errors import REQUEST_ERROR_MESSAGES
from tasks.outcomes import Outcome
from tasks.results import (
    StoredResult,
    answer_text,
    error_message,
    iter_results,
    output_line,
)
from tasks.tables import ResultSet
from tests.samples import answer, leased, started_job

CHAT = {"choices": [{"message": {"content": "Grüße, 世界 \u2028"}}], "usage": {}}


def stored(status_code: int | None, body: object = None, error_code: str | None = None) -> StoredResult:
    encoded = None if body is None else json.dumps(body, ensure_ascii=False).encode()
    return StoredResult(3, 0, "é-1", status_code, encoded, error_code, 1, 2, 3)


def line_of(result: StoredResult) -> dict[str, Any]:
    line = output_line("batch_abc", result)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    decoded: dict[str, Any] = json.loads(line)
    return decoded


@pytest.fixture
def job_id(backends: Backends) -> str:
    """A job whose seven results were written out of order; 1 was refused, 4 never ran."""
    job_id = started_job(backends, 7)
    lease = leased(backends, job_id)
    special = {
        1: answer(1, status_code=400, body=b'{"error":{"message":"no"}}'),
        4: answer(4, status_code=None, error_code="engine_crash"),
    }
    for index in (6, 1, 3, 0, 5, 4, 2):
        outcome: Outcome = special.get(index) or answer(index)
        record_results(backends.database, lease, [outcome], worker="w", lease_s=30, finish=False)
    return job_id


@pytest.mark.parametrize("page_rows", [1, 2, 3, 7, 8, 500])
def test_results_come_in_input_order_whatever_the_page(
    backends: Backends, job_id: str, monkeypatch: pytest.MonkeyPatch, page_rows: int
) -> None:
    monkeypatch.setattr(results, "PAGE_ROWS", page_rows)

    def indices(which: ResultSet) -> list[int]:
        return [row.index for row in iter_results(backends.database, job_id, which)]

    assert indices(ResultSet.ALL) == [0, 1, 2, 3, 4, 5, 6]
    assert indices(ResultSet.OUTPUT) == [0, 2, 3, 5, 6]
    assert indices(ResultSet.ERRORS) == [1, 4]


def test_a_job_without_results_has_none(backends: Backends) -> None:
    assert list(iter_results(backends.database, started_job(backends, 1))) == []


def test_results_of_other_jobs_stay_out(backends: Backends, job_id: str) -> None:
    other = started_job(backends, 1)
    lease = leased(backends, other)
    record_results(backends.database, lease, [answer(0)], worker="w", lease_s=30, finish=True)
    assert len(list(iter_results(backends.database, other))) == 1
    assert len(list(iter_results(backends.database, job_id))) == 7


def test_an_answer_is_a_line_with_response_and_no_error() -> None:
    assert line_of(stored(200, CHAT)) == {
        "id": "batch_req_abc_3",
        "custom_id": "é-1",
        "response": {"status_code": 200, "request_id": "batch_req_abc_3", "body": CHAT},
        "error": None,
    }


def test_a_refusal_by_the_engine_is_a_response_too() -> None:
    refusal = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
    line = line_of(stored(400, refusal))
    assert line["response"] == {"status_code": 400, "request_id": "batch_req_abc_3", "body": refusal}
    assert line["error"] is None


@pytest.mark.parametrize("code", sorted(REQUEST_ERROR_MESSAGES))
def test_a_request_without_answer_has_an_error_and_no_response(code: str) -> None:
    line = line_of(stored(None, error_code=code))
    assert line["response"] is None
    assert line["error"] == {"code": code, "message": REQUEST_ERROR_MESSAGES[code]}


def test_an_answer_reaches_the_line_byte_for_byte() -> None:
    body = '{ "n":1.0, "text":"Grüße \\u00fc 世界" ,"big":123456789012345678901234567890}'.encode()
    assert body in output_line("batch_abc", StoredResult(0, 0, "日本", 200, body, None, 0, 0, 0))
    assert '"custom_id":"日本"'.encode() in output_line(
        "b", StoredResult(0, 0, "日本", 200, body, None, 0, 0, 0)
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        # Chat, completions, responses.
        ({"choices": [{"message": {"content": "chat"}}, {"message": {"content": "second"}}]}, "chat"),
        ({"choices": [{"text": "completion"}]}, "completion"),
        (
            {
                "output": [
                    {"type": "reasoning"},
                    {"type": "message", "content": [{"text": "a"}, {"text": "b"}, {"type": "refusal"}]},
                ]
            },
            "ab",
        ),
        # Answers without text.
        ({"choices": [{"message": {"content": None, "tool_calls": []}}]}, None),
        ({"choices": []}, None),
        ({"choices": None, "output": None}, None),
        ({"data": [{"embedding": [0.5]}]}, None),
        ({"error": {"message": "no"}}, None),
        ([1], None),
        (None, None),
        # Shapes that some remote server may send; they must not stop an export.
        ({"choices": ["text"]}, None),
        ({"choices": {"message": "text"}}, None),
        ({"choices": [{"message": "text"}]}, None),
        ({"choices": [{"message": {"content": [{"type": "text", "text": "part"}]}}]}, None),
        ({"output": ["text"]}, None),
        ({"output": [{"type": "message", "content": [{"text": None}]}]}, ""),
    ],
)
def test_the_text_of_an_answer_is_found_where_there_is_one(body: object, text: str | None) -> None:
    assert answer_text(stored(200, body)) == text


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (stored(200, CHAT), None),
        (stored(400, {"error": {"message": "too long"}}), "too long"),
        (stored(418, {"detail": "odd"}), "status 418"),
        (stored(500, "text"), "status 500"),
        (stored(None, error_code="batch_cancelled"), REQUEST_ERROR_MESSAGES["batch_cancelled"]),
    ],
)
def test_a_failure_has_a_message_in_words(result: StoredResult, message: str | None) -> None:
    assert error_message(result) == message
