"""`POST /api/jobs` and its dry run: prompts, stored files, files that come along."""

import json
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from tasks.backends import Backends
from tasks.file_sink import store_file
from tasks.intake import run_intake
from tasks.jobs import get_job
from tasks.planned_file import PlannedRequest, read_frame
from tasks.tables import File, Job, Role
from tests.samples import chunks_of, good_input
from tests.web.conftest import Auth

CSV = b"name,text\nann,one two\nbob,three\n"
TEMPLATE = "Summarise: {{ text }}"


def planned(backends: Backends, job_id: str) -> list[PlannedRequest]:
    """The requests that intake makes of the job."""
    run_intake(backends, job_id)
    job = get_job(backends.database, job_id)
    assert job.planned_key is not None, job.errors
    return [
        request
        for chunk in chunks_of(backends, job_id)
        for request in read_frame(backends.storage, job.planned_key, chunk.offset, chunk.length)
    ]


def jobs_and_files(backends: Backends) -> tuple[int, int]:
    """How many jobs there are, and how many files that are not deleted."""
    with backends.database.read() as session:
        jobs = session.execute(select(func.count()).select_from(Job)).scalar_one()
        files = session.execute(select(func.count()).where(File.deleted_ms.is_(None))).scalar_one()
    return jobs, files


def form(content: bytes, filename: str, **fields: str) -> dict[str, Any]:
    """Arguments of a request with a file and other fields."""
    return {"data": {"file": (BytesIO(content), filename), **fields}, "content_type": "multipart/form-data"}


def error_of(answer: TestResponse) -> dict[str, Any]:
    error: dict[str, Any] = answer.get_json()["error"]
    return error


def test_prompts_become_a_job_of_their_own_file(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    asked = {
        "prompts": ["Say one.", "Say {{ two }}.\nTwice."],
        "system": "Be brief.",
        "settings": {"temperature": 0.2, "max_tokens": 5},
        "priority": "bulk",
        "metadata": {"team": "search"},
        "window": "2h",
    }
    answered = http.post("/api/jobs", headers=auth(Role.SUBMIT), json=asked)
    assert answered.status_code == 201, answered.data
    job = answered.get_json()
    assert answered.headers["Location"] == f"/api/jobs/{job['id']}"
    assert (job["kind"], job["status"], job["model"], job["priority"]) == (
        "rows",
        "validating",
        "sim",
        "bulk",
    )
    assert job["metadata"] == {"team": "search"}
    requests = planned(sqlite_backends, job["id"])
    assert [request.custom_id for request in requests] == ["row-1", "row-2"]
    assert json.loads(requests[1].body) == {
        "model": "sim",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Say {{ two }}.\nTwice."},
        ],
        "temperature": 0.2,
        "max_tokens": 5,
    }
    with sqlite_backends.database.read() as session:
        file = session.get_one(File, job["input_file"]["id"])
    assert file.job_id == job["id"]


def test_a_file_that_comes_along_is_rows_if_there_is_a_template(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    answered = http.post(
        "/api/jobs",
        headers=auth(),
        **form(
            CSV, "dir/people.csv", template=TEMPLATE, id_column="name", settings='{"seed": 7}', model="other"
        ),
    )
    assert answered.status_code == 201, answered.data
    job = answered.get_json()
    assert job["input_file"] == {"id": job["input_file"]["id"], "filename": "people.csv", "bytes": len(CSV)}
    requests = planned(sqlite_backends, job["id"])
    assert [request.custom_id for request in requests] == ["ann", "bob"]
    body = json.loads(requests[0].body)
    assert (body["model"], body["seed"]) == ("other", 7)
    assert body["messages"] == [{"role": "user", "content": "Summarise: one two"}]


def test_the_fields_of_a_form_may_be_one_json_object(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    options = json.dumps({"template": TEMPLATE, "json_schema": {"type": "object"}})
    answered = http.post("/api/jobs", headers=auth(), **form(CSV, "people.csv", job=options))
    body = json.loads(planned(sqlite_backends, answered.get_json()["id"])[0].body)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}},
    }


def test_a_file_without_a_template_is_request_lines(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    answered = http.post("/api/jobs", headers=auth(), **form(good_input(3), "in.jsonl"))
    job = answered.get_json()
    assert (job["kind"], job["model"]) == ("requests", None)
    assert [request.custom_id for request in planned(sqlite_backends, job["id"])] == ["r0", "r1", "r2"]


def test_a_stored_file_can_be_the_input_and_stays(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    file = store_file(sqlite_backends, [CSV], filename="people.csv", purpose="user_data")
    asked = {"input_file_id": file.id, "template": TEMPLATE}
    answered = http.post("/api/jobs", headers=auth(), json=asked)
    assert answered.status_code == 201, answered.data
    with sqlite_backends.database.read() as session:
        assert session.get_one(File, file.id).job_id is None


def test_answers_of_the_responses_endpoint_take_their_schema_in_its_own_field(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    asked = {"prompts": ["x"], "endpoint": "/v1/responses", "json_schema": {"type": "object"}}
    job = http.post("/api/jobs", headers=auth(), json=asked).get_json()
    body = json.loads(planned(sqlite_backends, job["id"])[0].body)
    assert body["text"]["format"] == {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


def test_a_deadline_is_a_moment(http: FlaskClient, auth: Auth) -> None:
    deadline = (datetime.now(UTC) + timedelta(hours=3)).replace(microsecond=0)
    asked = {"prompts": ["x"], "deadline": deadline.isoformat()}
    job = http.post("/api/jobs", headers=auth(), json=asked).get_json()
    assert datetime.fromisoformat(job["deadline"]) == deadline


REFUSED: list[tuple[dict[str, Any], int, str | None]] = [
    ({}, 400, None),
    ({"prompts": []}, 400, "prompts"),
    ({"prompts": [1]}, 400, "prompts.0"),
    ({"prompts": ["x"], "input_file_id": "file-1"}, 400, None),
    ({"input_file_id": "file-000000000000000000000000"}, 404, "input_file_id"),
    ({"prompts": ["x"], "model": "gpt-9"}, 400, "model"),
    ({"prompts": ["x"], "endpoint": "/v1/dance"}, 400, "endpoint"),
    ({"prompts": ["x"], "endpoint": "/v1/rerank"}, 400, "endpoint"),
    ({"prompts": ["x"], "template": "{{ prompt"}, 400, "template"),
    ({"prompts": ["x"], "priority": "high"}, 400, "priority"),
    ({"prompts": ["x"], "window": "soon"}, 400, "window"),
    ({"prompts": ["x"], "window": "24h", "deadline": "2099-01-01T00:00:00Z"}, 400, None),
    ({"prompts": ["x"], "deadline": "2099-01-01"}, 400, "deadline"),
    ({"prompts": ["x"], "deadline": "9999-12-31T23:59:59-12:00"}, 400, "deadline"),
    ({"prompts": ["x"], "format": "csv"}, 400, None),
    ({"prompts": ["x"], "metadata": {"k" * 65: "v"}}, 400, f"metadata.{'k' * 65}.[key]"),
    ({"prompts": ["x"], "metadata": {"k": "v" * 513}}, 400, "metadata.k"),
    ({"prompts": ["x"], "metadata": {str(n): "" for n in range(17)}}, 400, "metadata"),
    ({"prompts": ["x"], "metadata": {"k": 1}}, 400, "metadata.k"),
    ({"prompts": ["x"], "metadata": {"k": "a\x00b"}}, 400, "metadata.k"),
    ({"prompts": ["x"], "settings": {"messages": []}}, 400, "settings.messages"),
    ({"prompts": ["x"], "settings": {"seed": 2**70}}, 400, "settings"),
    ({"prompts": ["x"], "settings": {"seed": float("nan")}}, 400, "settings"),
    ({"prompts": ["x"], "settings": {"a": [{"b": float("inf")}]}}, 400, "settings"),
    ({"prompts": ["x"], "json_schema": {}, "response_format": {}}, 400, None),
    ({"prompts": ["x"], "output_expires_s": 10}, 400, "output_expires_s"),
    ({"prompts": ["x"], "output_expires_s": "3600"}, 400, "output_expires_s"),
    ({"prompts": ["x"], "temprature": 1}, 400, "temprature"),
]


@pytest.mark.parametrize(("asked", "status", "param"), REFUSED, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("path", ["/api/jobs", "/api/jobs/validate"])
def test_a_wrong_submission_names_its_field_and_leaves_nothing_behind(
    http: FlaskClient,
    auth: Auth,
    sqlite_backends: Backends,
    path: str,
    asked: dict[str, Any],
    status: int,
    param: str | None,
) -> None:
    refusal = http.post(path, headers=auth(), json=asked)
    assert (refusal.status_code, error_of(refusal)["param"]) == (status, param), refusal.data
    assert jobs_and_files(sqlite_backends) == (0, 0)


@pytest.mark.parametrize(
    ("content", "filename", "fields", "param"),
    [
        (CSV, "people.csv", {}, "template"),
        (CSV, "people.xlsx", {"template": TEMPLATE}, "format"),
        (CSV, "people.csv", {"template": TEMPLATE, "settings": "{"}, "settings"),
        (CSV, "people.csv", {"template": TEMPLATE, "settings": "[" * 5000}, "settings"),
        (CSV, "people.csv", {"template": TEMPLATE, "settings": "[]"}, "settings"),
        (CSV, "people.csv", {"template": TEMPLATE, "colour": "red"}, "colour"),
        (CSV, "people.csv", {"job": "{}", "template": TEMPLATE}, "template"),
        (CSV, "people.csv", {"job": "{"}, None),
        (good_input(1), "in.jsonl", {"system": "x"}, "system"),
        (good_input(1), "in.jsonl", {"settings": '{"temperature": 1}'}, "settings"),
        (good_input(1), "in.jsonl", {"id_column": "x"}, "id_column"),
    ],
)
def test_a_wrong_form_names_its_field_and_leaves_nothing_behind(
    http: FlaskClient,
    auth: Auth,
    sqlite_backends: Backends,
    content: bytes,
    filename: str,
    fields: dict[str, str],
    param: str | None,
) -> None:
    refusal = http.post("/api/jobs", headers=auth(), **form(content, filename, **fields))
    assert (refusal.status_code, error_of(refusal)["param"]) == (400, param), refusal.data
    assert jobs_and_files(sqlite_backends) == (0, 0)
    assert list((sqlite_backends.settings.data_dir / "storage" / "files").glob("*")) == []


def test_a_form_that_is_cut_or_has_two_files_leaves_nothing_behind(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nx\r\n'
    for body in (part, part + part + b"--b--\r\n", part[:40], b""):
        refusal = http.post(
            "/api/jobs", headers=auth(), data=body, content_type="multipart/form-data; boundary=b"
        )
        assert refusal.status_code == 400, refusal.data
    assert (
        http.post("/api/jobs", headers=auth(), data=b"", content_type="multipart/form-data").status_code
        == 400
    )
    assert jobs_and_files(sqlite_backends) == (0, 0)


def test_other_media_types_are_refused(http: FlaskClient, auth: Auth) -> None:
    refusal = http.post("/api/jobs", headers=auth(), data="prompts: x", content_type="text/yaml")
    assert (refusal.status_code, error_of(refusal)["param"]) == (415, "Content-Type")


def test_a_body_that_is_too_long_is_refused_before_it_is_read(http: FlaskClient, auth: Auth) -> None:
    for kind in ("application/json", "multipart/form-data; boundary=b"):
        environment = {"CONTENT_LENGTH": str(1 << 40)}
        refusal = http.post(
            "/api/jobs", headers=auth(), data=b"{}", content_type=kind, environ_overrides=environment
        )
        assert (refusal.status_code, error_of(refusal)["code"]) == (413, "file_too_large")


def test_a_deadline_that_has_passed_is_refused(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    asked = {"prompts": ["x"], "deadline": "2020-01-01T00:00:00Z"}
    refusal = http.post("/api/jobs", headers=auth(), json=asked)
    assert (refusal.status_code, error_of(refusal)["param"]) == (400, "deadline")
    assert jobs_and_files(sqlite_backends) == (0, 0)


def test_the_same_idempotency_key_makes_one_job(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    headers = {**auth(), "Idempotency-Key": "once"}
    first = http.post("/api/jobs", headers=headers, json={"prompts": ["x"], "priority": "bulk"})
    again = http.post("/api/jobs", headers=headers, json={"priority": "bulk", "prompts": ["x"]})
    assert first.get_json()["id"] == again.get_json()["id"]
    assert jobs_and_files(sqlite_backends) == (1, 1)
    other = http.post("/api/jobs", headers=headers, json={"prompts": ["y"]})
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_key_reused")
    assert jobs_and_files(sqlite_backends) == (1, 1)


def test_the_same_idempotency_key_makes_one_job_of_a_file(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    headers = {**auth(), "Idempotency-Key": "once"}
    ids = {
        http.post("/api/jobs", headers=headers, **form(CSV, "a.csv", template=TEMPLATE)).get_json()["id"]
        for _ in range(2)
    }
    assert len(ids) == 1
    assert jobs_and_files(sqlite_backends) == (1, 1)
    other = http.post("/api/jobs", headers=headers, **form(CSV + b"x,y\n", "a.csv", template=TEMPLATE))
    assert other.status_code == 409


@pytest.mark.parametrize("key", ["", "x" * 256, "a b"])
def test_an_idempotency_key_that_is_none_is_refused(http: FlaskClient, auth: Auth, key: str) -> None:
    headers = {**auth(), "Idempotency-Key": key}
    refusal = http.post("/api/jobs", headers=headers, json={"prompts": ["x"]})
    assert (refusal.status_code, error_of(refusal)["param"]) == (400, "Idempotency-Key")


def test_a_dry_run_shows_what_would_run_and_makes_nothing(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    answered = http.post("/api/jobs/validate", headers=auth(), **form(CSV, "people.csv", template=TEMPLATE))
    report = answered.get_json()
    assert (report["valid"], report["errors"], report["error_count"]) == (True, [], 0)
    assert (report["requests"], report["model"], report["columns"]) == (2, "sim", ["name", "text"])
    assert [sample["prompt"] for sample in report["samples"]] == ["Summarise: one two", "Summarise: three"]
    assert report["samples"][0]["body"]["messages"][0]["content"] == "Summarise: one two"
    assert report["estimated_tokens"] > 0
    assert report["expected_s"] is None
    assert jobs_and_files(sqlite_backends) == (0, 0)


def test_a_dry_run_answers_every_fault_with_its_line(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    content = good_input(1) + b"{oops\n" + b'{"custom_id": "x"}\n'
    report = http.post("/api/jobs/validate", headers=auth(), **form(content, "in.jsonl")).get_json()
    assert report["valid"] is False
    assert {(fault["line"], fault["code"]) for fault in report["errors"]} == {
        (2, "invalid_json_line"),
        (3, "missing_required_parameter"),
    }
    assert report["error_count"] == len(report["errors"]) == 4
    assert jobs_and_files(sqlite_backends) == (0, 0)


def test_a_column_that_is_not_there_is_named(http: FlaskClient, auth: Auth) -> None:
    asked = form(CSV, "people.csv", template="{{ txet }}")
    report = http.post("/api/jobs/validate", headers=auth(), **asked).get_json()
    assert report["valid"] is False
    assert "txet" in report["errors"][0]["message"]


def test_a_reader_cannot_submit(http: FlaskClient, auth: Auth) -> None:
    refusal = http.post("/api/jobs", headers=auth(Role.READ), json={"prompts": ["x"]})
    assert (refusal.status_code, error_of(refusal)["code"]) == (403, "insufficient_role")


def test_the_broker_may_be_away(http: FlaskClient, auth: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OSError("no broker")

    monkeypatch.setattr("tasks.system.intake.delay", away)
    assert http.post("/api/jobs", headers=auth(), json={"prompts": ["x"]}).status_code == 201
