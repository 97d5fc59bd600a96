"""One request that a client waits for: answered in place, or given up with a reason."""

import json
import threading
from base64 import b64decode
from collections.abc import Callable

import pytest
from celery import Celery
from sqlalchemy import select

from tasks import single
from tasks.backends import Backends
from tasks.chunks import lease_chunk, record_results
from tasks.errors import Conflict, NotFound, UserError
from tasks.finalise import settle
from tasks.jobs import get_job
from tasks.listing import list_jobs
from tasks.outcomes import Outcome
from tasks.purge import purge_jobs
from tasks.single import answer_single
from tasks.tables import Job, JobStatus, Lane
from tests.samples import ENDPOINT, alive, outcomes_of
from tests.waiting import eventually

BODY = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "Hi"}]}).encode()


def jobs_of(backends: Backends) -> list[Job]:
    with backends.database.read() as session:
        return list(session.scalars(select(Job)))


def worker(backends: Backends, change: Callable[[Outcome], Outcome]) -> threading.Thread:
    """A worker that takes the one request and answers it."""

    def work() -> None:
        eventually(lambda: bool(jobs_of(backends)))
        (job,) = jobs_of(backends)
        lease = lease_chunk(backends.database, job.id, 0, "worker-1", 30)
        assert lease is not None
        outcomes = [change(outcome) for outcome in outcomes_of(backends, lease)]
        record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("status_code", [200, 422])
def test_the_engines_answer_comes_back_as_it_is(
    backends: Backends, celery_app: Celery, status_code: int
) -> None:
    thread = worker(
        backends, lambda given: Outcome(given.index, given.custom_id, status_code, b'{"from": "the engine"}')
    )
    answer = answer_single(celery_app, backends, "local", ENDPOINT, BODY, 20.0)
    thread.join()
    assert (answer.status_code, answer.body) == (status_code, b'{"from": "the engine"}')
    # It is nobody's batch, and leaves nothing behind.
    (job,) = jobs_of(backends)
    assert job.lane == Lane.URGENT
    assert list_jobs(backends.database, "local").items == []
    with pytest.raises(NotFound):
        get_job(backends.database, job.id, "local")
    assert settle(backends, job.id) == JobStatus.COMPLETED
    assert purge_jobs(backends) == 1
    assert jobs_of(backends) == []


def test_a_request_that_takes_the_engine_with_it_is_an_error(
    sqlite_backends: Backends, celery_app: Celery
) -> None:
    thread = worker(
        sqlite_backends, lambda given: Outcome(given.index, given.custom_id, None, None, "engine_crash")
    )
    answer = answer_single(celery_app, sqlite_backends, "local", ENDPOINT, BODY, 20.0)
    thread.join()
    assert answer.status_code == 500
    assert json.loads(answer.body)["error"]["code"] == "engine_crash"


def test_no_answer_in_time_cancels_and_says_why(sqlite_backends: Backends, celery_app: Celery) -> None:
    with pytest.raises(UserError, match="No worker serves the model 'sim'") as late:
        answer_single(celery_app, sqlite_backends, "local", ENDPOINT, BODY, 0.2)
    assert late.value.code == "timeout"
    (job,) = jobs_of(sqlite_backends)
    assert job.status == JobStatus.CANCELLING
    # Should the process that waits die, the request ends all the same.
    assert job.deadline_ms == job.created_ms + 200
    assert settle(sqlite_backends, job.id) == JobStatus.CANCELLED
    assert purge_jobs(sqlite_backends) == 1


def test_a_worker_that_is_there_but_slow_is_not_called_missing(
    sqlite_backends: Backends, celery_app: Celery
) -> None:
    alive(sqlite_backends, "worker-1", 0)
    with pytest.raises(UserError, match=r"No answer within 0\.05 s; the request was cancelled"):
        answer_single(celery_app, sqlite_backends, "local", ENDPOINT, BODY, 0.05)


def test_an_answer_that_comes_while_the_request_is_given_up_does_no_harm(
    sqlite_backends: Backends, celery_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended_already(*_: object) -> None:
        raise Conflict("The job is finalizing.")

    monkeypatch.setattr(single, "cancel_job", ended_already)
    with pytest.raises(UserError) as late:
        answer_single(celery_app, sqlite_backends, "local", ENDPOINT, BODY, 0.01)
    assert late.value.code == "timeout"


def test_the_message_of_a_single_request_is_on_the_urgent_lane_without_its_prompt(
    sqlite_backends: Backends, celery_app: Celery
) -> None:
    secret = BODY.replace(b"Hi", b"do not tell")
    with pytest.raises(UserError):
        answer_single(celery_app, sqlite_backends, "local", ENDPOINT, secret, 0.01)
    (job,) = jobs_of(sqlite_backends)
    with celery_app.connection_for_read() as connection:
        (message,) = connection.default_channel.client.lrange("sim.urgent", 0, -1)
    assert job.id.encode() in message
    assert b"do not tell" not in b64decode(json.loads(message)["body"])
    assert b"do not tell" not in message


def test_a_request_whose_engine_never_answers_before_its_deadline_is_a_timeout(
    sqlite_backends: Backends, celery_app: Celery
) -> None:
    thread = worker(
        sqlite_backends, lambda given: Outcome(given.index, given.custom_id, None, None, "batch_expired")
    )
    answer = answer_single(celery_app, sqlite_backends, "local", ENDPOINT, BODY, 20.0)
    thread.join()
    assert answer.status_code == 504
    assert json.loads(answer.body)["error"]["code"] == "batch_expired"


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (ENDPOINT, b"not json", None),
        (ENDPOINT, b"[]", None),
        (ENDPOINT, b"{}", "model"),
        (ENDPOINT, b'{"model": 3}', "model"),
        (ENDPOINT, b'{"model": "nobody"}', "model"),
        (ENDPOINT, b'{"model": "sim", "stream": true}', "stream"),
        ("/v1/images", b'{"model": "sim"}', "endpoint"),
    ],
)
def test_what_is_no_request_is_refused_before_anything_is_stored(
    sqlite_backends: Backends, celery_app: Celery, endpoint: str, body: bytes, param: str | None
) -> None:
    with pytest.raises(UserError) as refused:
        answer_single(celery_app, sqlite_backends, "local", endpoint, body, 1.0)
    assert refused.value.param == param
    assert jobs_of(sqlite_backends) == []
    folder = sqlite_backends.settings.data_dir / "storage"
    assert [path for path in folder.rglob("*") if path.is_file()] == []
