"""`/v1/batches/validate` and single requests: what needs no engine to be judged."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient
from flask_openapi import OpenAPI
from sqlalchemy import func, select

from tasks.backends import Backends
from tasks.file_sink import store_file
from tasks.tables import Job, Role
from tests.samples import ENDPOINT, good_input, with_settings
from tests.web.conftest import Auth

SINGLE = {"model": "sim", "messages": [{"role": "user", "content": "Hi"}]}


def jobs_in(backends: Backends) -> int:
    with backends.database.read() as session:
        return session.execute(select(func.count()).select_from(Job)).scalar_one()


def asked(backends: Backends, content: bytes, **more: Any) -> dict[str, Any]:
    file = store_file(backends, [content], filename="in.jsonl")
    return {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h", **more}


def test_a_dry_run_shows_what_a_batch_would_be_and_makes_none(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    body = asked(sqlite_backends, good_input(5, prompt="Why?"))
    report = http.post("/v1/batches/validate", headers=auth(), json=body).get_json()
    assert report["object"] == "batch.validation"
    assert (report["valid"], report["errors"], report["error_count"]) == (True, [], 0)
    assert (report["requests"], report["model"]) == (5, "sim")
    assert [(sample["custom_id"], sample["prompt"]) for sample in report["samples"]] == [
        ("r0", "Why?"),
        ("r1", "Why?"),
        ("r2", "Why?"),
    ]
    assert report["samples"][0]["body"] == {"model": "sim", "messages": [{"role": "user", "content": "Why?"}]}
    assert report["estimated_tokens"] > 0
    assert report["expected_s"] is None
    assert jobs_in(sqlite_backends) == 0


def test_a_dry_run_answers_every_fault_with_its_line(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    body = asked(sqlite_backends, good_input(1) + b"{broken\n\n" + good_input(1))
    report = http.post("/v1/batches/validate", headers=auth(), json=body).get_json()
    assert (report["valid"], report["error_count"]) == (False, 2)
    assert [(fault["code"], fault["line"]) for fault in report["errors"]] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 4),
    ]
    assert jobs_in(sqlite_backends) == 0


def test_a_dry_run_of_a_foreign_file_is_a_404(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    body = asked(sqlite_backends, good_input(1))
    refusal = http.post("/v1/batches/validate", headers=auth(tenant="stranger"), json=body)
    assert (refusal.status_code, refusal.get_json()["error"]["param"]) == (404, "input_file_id")


@pytest.mark.parametrize("window", ["24h", "1d", "90m", "30s", "7d"])
def test_a_window_comes_back_as_it_was_sent(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, window: str
) -> None:
    body = asked(sqlite_backends, good_input(1), completion_window=window)
    batch = http.post("/v1/batches", headers=auth(), json=body).get_json()
    assert batch["completion_window"] == window
    seconds = int(window[:-1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[window[-1]]
    assert batch["expires_at"] == batch["created_at"] + seconds


def test_a_single_request_longer_than_a_line_may_be_is_refused(
    site: OpenAPI, http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    site.extensions["backends"] = with_settings(site.extensions["backends"], max_line_bytes=100)
    message = {"role": "user", "content": "x" * 100}
    refusal = http.post(ENDPOINT, headers=auth(), json={**SINGLE, "messages": [message]})
    assert (refusal.status_code, refusal.get_json()["error"]["code"]) == (413, "file_too_large")
    assert jobs_in(sqlite_backends) == 0


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"not json", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"model=sim", "application/x-www-form-urlencoded", 415),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_a_single_request_that_is_none_is_refused(
    path: str,
    content: bytes,
    content_type: str,
    status: int,
    http: FlaskClient,
    auth: Auth,
    sqlite_backends: Backends,
) -> None:
    refusal = http.post(path, headers=auth(), data=content, content_type=content_type)
    assert refusal.status_code == status, refusal.text
    assert refusal.get_json()["error"]["type"] == "invalid_request_error"
    assert jobs_in(sqlite_backends) == 0


def test_waiting_requests_leave_threads_to_others(site: OpenAPI, auth: Auth) -> None:
    settings = {"web_threads": 2, "sync_timeout_s": 1.5}
    site.extensions["backends"] = with_settings(site.extensions["backends"], **settings)
    headers = auth(Role.SUBMIT)

    def ask(_: int) -> Any:
        return site.test_client().post(ENDPOINT, headers=headers, json=SINGLE)

    with ThreadPoolExecutor(2) as pool:
        answers = sorted(pool.map(ask, range(2)), key=lambda answered: int(answered.status_code))
    assert [answered.status_code for answered in answers] == [429, 504]
    assert answers[0].headers["Retry-After"]
    assert answers[0].get_json()["error"]["type"] == "rate_limit_error"
    assert answers[1].get_json()["error"]["code"] == "timeout"
    assert answers[1].headers["x-should-retry"] == "false"
