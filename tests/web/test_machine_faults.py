"""What a client is told when the machine under the server fails; nothing half is left of its call."""

import os
import signal
import sqlite3
import time
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from flask_openapi import OpenAPI
from pydantic import SecretStr
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tasks.backends import Backends
from tasks.faults import StorageFailed, StorageFull
from tasks.submission import OutcomeUnknown
from tasks.tables import File, Job, JobStatus
from tests.samples import good_input
from tests.web.conftest import Auth
from web.api import submit
from web.app import create_app
from workers.embedded_redis import EmbeddedRedis

PROMPTS = {"model": "sim", "prompts": ["one", "two"]}


def sqlite_error(code: int, message: str) -> OperationalError:
    cause = sqlite3.OperationalError(message)
    cause.sqlite_errorcode = code
    return OperationalError("INSERT", {}, cause)


def left(backends: Backends) -> tuple[int, int]:
    """Jobs and visible files."""
    with backends.database.read() as session:
        files = select(func.count()).select_from(File).where(File.deleted_ms.is_(None))
        return (
            session.execute(select(func.count()).select_from(Job)).scalar_one(),
            session.execute(files).scalar_one(),
        )


def upload(http: FlaskClient, headers: dict[str, str]) -> Any:
    form = {"file": (BytesIO(good_input(3)), "in.jsonl"), "purpose": "batch"}
    return http.post("/v1/files", data=form, headers=headers)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (StorageFull("no room for files/x"), 507, "storage_full"),
        (StorageFailed("the disk is read-only"), 503, "unavailable"),
    ],
)
def test_storage_that_takes_nothing_refuses_an_upload_and_keeps_nothing(
    site: OpenAPI,
    http: FlaskClient,
    auth: Auth,
    sqlite_backends: Backends,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    status: int,
    code: str,
) -> None:
    class FullSink:
        def write(self, data: bytes, /) -> int:
            return len(data)

        def close(self) -> None:
            raise fault

    monkeypatch.setattr(site.extensions["backends"].storage, "writer", lambda _: FullSink())
    answer = upload(http, auth())
    assert (answer.status_code, answer.json["error"]["code"]) == (status, code)
    assert answer.json["error"]["type"] == "server_error"
    assert left(sqlite_backends) == (0, 0)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full"), 507, "storage_full"),
        (sqlite_error(sqlite3.SQLITE_READONLY, "attempt to write a readonly database"), 503, "unavailable"),
        (sqlite_error(sqlite3.SQLITE_BUSY, "database is locked"), 503, "unavailable"),
        (OutcomeUnknown(), 503, "outcome_unknown"),
    ],
)
def test_a_database_that_takes_nothing_refuses_a_job_and_keeps_nothing(
    http: FlaskClient,
    auth: Auth,
    sqlite_backends: Backends,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    status: int,
    code: str,
) -> None:
    def refuse(*_: object) -> Job:
        raise fault

    monkeypatch.setattr(submit, "create_job", refuse)
    answer = http.post("/api/jobs", json=PROMPTS, headers=auth())
    assert answer.json is not None
    assert (answer.status_code, answer.json["error"]["code"]) == (status, code)
    assert "Retry-After" in answer.headers or status == 507
    assert left(sqlite_backends) == (0, 0)


def test_a_job_is_answered_as_accepted_although_the_database_goes_away_right_after(
    site: OpenAPI, http: FlaskClient, auth: Auth, sqlite_backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = auth()
    database = site.extensions["backends"].database

    def away() -> AbstractContextManager[Session]:
        raise sqlite_error(sqlite3.SQLITE_BUSY, "database is locked")

    monkeypatch.setattr(submit, "announce", lambda _: monkeypatch.setattr(database, "read", away))
    answer = http.post("/api/jobs", json=PROMPTS, headers=headers)
    assert answer.status_code == 201
    assert answer.json is not None
    assert answer.json["status"] == "validating"
    assert left(sqlite_backends) == (1, 1)


@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_a_submission_is_accepted_within_three_seconds_while_redis_is_away(
    sqlite_backends: Backends, auth: Auth, tmp_path: Path, how: str
) -> None:
    redis = EmbeddedRedis(tmp_path / "redis")
    redis.start(tmp_path / "redis.log")
    assert redis.child is not None
    assert redis.child.pid is not None
    pid = redis.child.pid
    app = create_app(sqlite_backends.settings.model_copy(update={"redis_url": SecretStr(redis.url)}))
    http, headers = app.test_client(), auth()
    try:
        if how == "frozen":
            os.kill(pid, signal.SIGSTOP)
        else:
            redis.stop()
        began = time.monotonic()
        answers = [http.post("/api/jobs", json=PROMPTS, headers=headers) for _ in range(3)]
        assert time.monotonic() - began < 3.0, "all three together"
    finally:
        if how == "frozen":
            os.kill(pid, signal.SIGCONT)
        redis.stop()
        app.extensions["backends"].database.close()
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    with sqlite_backends.database.read() as session:
        assert list(session.scalars(select(Job.status))) == [JobStatus.VALIDATING] * 3
