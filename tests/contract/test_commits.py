"""A commit whose answer never came: what the client is told is what is."""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tasks import submission
from tasks.backends import Backends
from tasks.file_sink import store_file
from tasks.submission import JobRequest, OutcomeUnknown, create_job
from tasks.tables import Job
from tests.samples import ENDPOINT, good_input


class Cut(OperationalError):
    """The connection broke."""

    def __init__(self) -> None:
        super().__init__("COMMIT", {}, sqlite3.OperationalError("the connection is gone"))


def request_of(backends: Backends) -> JobRequest:
    file = store_file(backends, [good_input(2)], filename="in.jsonl")
    return JobRequest(endpoint=ENDPOINT, input_file_id=file.id)


def jobs(backends: Backends) -> int:
    with backends.database.read() as session:
        return session.execute(select(func.count()).select_from(Job)).scalar_one()


def cut_at_commit(backends: Backends, patch: pytest.MonkeyPatch, *, committed: bool) -> None:
    """The next write ends with a broken connection, after its commit or instead of it."""
    write = backends.database.write

    @contextmanager
    def cut() -> Iterator[Session]:
        patch.setattr(backends.database, "write", write)
        with write() as session:
            yield session
            if not committed:
                raise Cut
        raise Cut

    patch.setattr(backends.database, "write", cut)


def test_a_job_that_was_committed_is_accepted_although_the_connection_broke(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(backends)
    cut_at_commit(backends, monkeypatch, committed=True)
    job = create_job(backends, request)
    assert job.total == 0
    assert jobs(backends) == 1


def test_a_job_that_was_not_committed_is_refused_and_never_runs(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(backends)
    cut_at_commit(backends, monkeypatch, committed=False)
    with pytest.raises(Cut):
        create_job(backends, request)
    assert jobs(backends) == 0


def test_a_database_that_stays_away_is_an_unknown_outcome(
    sqlite_backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = sqlite_backends
    request = request_of(backends)
    monkeypatch.setattr(submission, "FIRST_ASKED_S", 0.001)
    monkeypatch.setattr(submission, "LONGEST_ASKED_S", 0.001)
    cut_at_commit(backends, monkeypatch, committed=True)

    def away() -> AbstractContextManager[Session]:
        raise Cut

    monkeypatch.setattr(backends.database, "read", away)
    with pytest.raises(OutcomeUnknown, match="Idempotency-Key"):
        create_job(backends, request)
