"""`/api/jobs/{id}/events`: progress as server-sent events, from the first look to the end."""

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.jobs import get_job
from tasks.tables import JobStatus, Role
from tests.samples import change_job, leased, outcomes_of, started_job
from tests.web.conftest import Auth
from web.api import events


def parsed(stream: str) -> list[tuple[str, Any]]:
    """The events of a stream: name and data."""
    found = []
    for block in stream.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


class Looks:
    """Stands for time: what happens between two looks at the job, instead of waiting."""

    def __init__(self, *happenings: Any) -> None:
        self._happenings = list(happenings)
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self._happenings:
            self._happenings.pop(0)()


def nothing() -> None:
    """Time passes."""


@pytest.fixture
def job_id(sqlite_backends: Backends) -> str:
    """A running job of three requests."""
    return started_job(sqlite_backends, 3)


def test_progress_is_sent_when_it_changes_and_the_stream_ends_with_the_job(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        lease = leased(sqlite_backends, job_id)
        done = outcomes_of(sqlite_backends, lease)
        record_results(sqlite_backends.database, lease, done, worker="w", lease_s=30, finish=True)

    def end() -> None:
        now = get_job(sqlite_backends.database, job_id).in_progress_ms
        change_job(sqlite_backends, job_id, status=JobStatus.COMPLETED, completed_ms=now)

    monkeypatch.setattr(events, "time", Looks(nothing, work, end))
    answered = http.get(f"/api/jobs/{job_id}/events", headers=auth(Role.READ))
    assert answered.mimetype == "text/event-stream"
    seen = parsed(answered.get_data(as_text=True))
    assert [name for name, _ in seen] == ["progress", "progress", "progress", "end"]
    assert [data["counts"]["completed"] for _, data in seen[:3]] == [0, 3, 3]
    assert seen[-2][1]["status"] == "completed"
    assert seen[-1][1] == {"status": "completed"}


def test_a_job_that_has_ended_ends_the_stream_at_once(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, job_id: str
) -> None:
    change_job(sqlite_backends, job_id, status=JobStatus.FAILED)
    headers = {**auth(), "Last-Event-ID": "77"}
    seen = parsed(http.get(f"/api/jobs/{job_id}/events", headers=headers).get_data(as_text=True))
    assert [name for name, _ in seen] == ["progress", "end"]


def test_a_job_that_is_deleted_ends_the_stream(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(lambda: change_job(sqlite_backends, job_id, deleted_ms=1))
    monkeypatch.setattr(events, "time", looks)
    seen = parsed(http.get(f"/api/jobs/{job_id}/events", headers=auth()).get_data(as_text=True))
    assert seen[-1] == ("end", {"status": "deleted"})


def test_a_silent_stream_beats_and_ends_after_its_lifetime(
    http: FlaskClient, auth: Auth, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks()
    monkeypatch.setattr(events, "time", looks)
    stream = http.get(f"/api/jobs/{job_id}/events", headers=auth()).get_data(as_text=True)
    assert [name for name, _ in parsed(stream)] == ["progress"]
    assert stream.count(": still here") == events.LIFETIME_S // events.HEARTBEAT_S
    assert looks.now_s == events.LIFETIME_S
    assert stream.startswith("retry: ")


def test_streams_leave_threads_for_other_requests(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = int(sqlite_backends.settings.web_threads * events.SHARE_OF_THREADS)
    monkeypatch.setattr(events._streams, "_open", most)
    seen = parsed(http.get(f"/api/jobs/{job_id}/events", headers=auth()).get_data(as_text=True))
    assert [name for name, _ in seen] == ["progress"]
    assert events._streams._open == most
