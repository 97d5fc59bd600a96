"""Reading results: in input order, a page at a time, as OpenAI's output and error lines."""

from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import Select, select

from tasks.database import Database
from tasks.errors import REQUEST_ERROR_MESSAGES
from tasks.ids import request_id
from tasks.outcomes import Outcome
from tasks.tables import Result, ResultSet

PAGE_ROWS = 500
"""Rows read at a time: about half a megabyte of typical answers."""


class StoredResult(msgspec.Struct, frozen=True):
    """One row of `results`, as exports need it."""

    index: int
    chunk: int
    custom_id: str
    status_code: int | None
    body: bytes | None
    error_code: str | None
    input_tokens: int
    output_tokens: int
    duration_ms: int


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _OutputLine(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


_encode = msgspec.json.Encoder().encode


def iter_results(database: Database, job_id: str, which: ResultSet = ResultSet.ALL) -> Iterator[StoredResult]:
    """The results that are there now, in input order. Each page is a transaction of its own."""
    query = _query(job_id, which).limit(PAGE_ROWS)
    after = -1
    while True:
        with database.read() as session:
            page = session.execute(query.where(Result.index > after)).all()
        for row in page:
            yield StoredResult(*row)
        if len(page) < PAGE_ROWS:
            return
        after = page[-1][0]


def results_page(
    database: Database,
    job_id: str,
    *,
    which: ResultSet = ResultSet.ALL,
    after: int = -1,
    limit: int = 50,
    search: str | None = None,
) -> tuple[list[StoredResult], bool]:
    """Results behind the index `after`, and whether there are more; `search` is a part of the custom_id."""
    query = _query(job_id, which).where(Result.index > after).limit(limit + 1)
    if search:
        query = query.where(Result.custom_id.icontains(search, autoescape=True))
    with database.read() as session:
        rows = session.execute(query).all()
    return [StoredResult(*row) for row in rows[:limit]], len(rows) > limit


def _query(job_id: str, which: ResultSet) -> Select[*tuple[Any, ...]]:
    columns = (
        Result.index,
        Result.chunk,
        Result.custom_id,
        Result.status_code,
        Result.body,
        Result.error_code,
        Result.input_tokens,
        Result.output_tokens,
        Result.duration_ms,
    )
    query = select(*columns).where(Result.job_id == job_id).order_by(Result.index)
    if which is ResultSet.OUTPUT:
        query = query.where(Result.status_code == 200)
    elif which is ResultSet.ERRORS:
        query = query.where(Result.status_code.is_distinct_from(200))
    return query


def output_line(job_id: str, result: StoredResult) -> bytes:
    """The result as a line of an OpenAI output or error file, newline included."""
    identifier = request_id(job_id, result.index)
    response = error = None
    if result.status_code is not None:
        response = _Response(result.status_code, identifier, msgspec.Raw(result.body or b"null"))
    else:
        code = result.error_code or "engine_crash"
        error = _Error(code, REQUEST_ERROR_MESSAGES[code])
    return _encode(_OutputLine(identifier, result.custom_id, response, error)) + b"\n"


def line_bytes(job_id: str, outcome: Outcome) -> int:
    """The length of the result's output line, without making it."""
    identifier = len(request_id(job_id, outcome.index))
    custom_id = len(_encode(outcome.custom_id))
    if outcome.status_code is None:
        return _ERROR_FRAME[outcome.error_code or "engine_crash"] + identifier + custom_id
    body = len(outcome.body or b"null")
    return _ANSWER_FRAME + 2 * identifier + custom_id + len(str(outcome.status_code)) + body


def _frame_bytes(response: _Response | None, error: _Error | None) -> int:
    """An output line without what differs from one result to the next."""
    return len(_encode(_OutputLine("", "", response, error))) + len("\n") - len('""')


_ANSWER_FRAME = _frame_bytes(_Response(0, "", msgspec.Raw(b"")), None) - len("0")
_ERROR_FRAME = {
    code: _frame_bytes(None, _Error(code, message)) for code, message in REQUEST_ERROR_MESSAGES.items()
}


def answer_text(result: StoredResult) -> str | None:
    """The text a person looks for in an answer: of the first choice or output; null when there is none."""
    match decoded_body(result):
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            return text
        case {"choices": [{"text": str(text)}, *_]}:
            return text
        case {"output": list(items)}:
            return _first_message(items)
    return None


def _first_message(items: list[Any]) -> str | None:
    for item in items:
        match item:
            case {"type": "message", "content": list(parts)}:
                return "".join(part["text"] for part in parts if _has_text(part))
    return None


def _has_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def error_message(result: StoredResult) -> str | None:
    """Why the request failed; null when it did not."""
    if result.status_code is None:
        return REQUEST_ERROR_MESSAGES[result.error_code or "engine_crash"]
    if result.status_code == 200:
        return None
    body = decoded_body(result)
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else f"status {result.status_code}"


def decoded_body(result: StoredResult) -> Any:
    """The answer's body as Python values; null when there was no answer."""
    return None if result.body is None else msgspec.json.decode(result.body)
