"""The audit trail: one line for each change, with nothing in it that must stay secret."""

import json

import pytest
from celery import Celery
from sqlalchemy import select

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.errors import UserError
from tasks.file_sink import store_file
from tasks.files import delete_file
from tasks.finalise import settle
from tasks.intake import run_intake
from tasks.jobs import cancel_job, delete_job, set_lane
from tasks.keys import create_key, revoke_key
from tasks.rows import RowsFormat, RowsSpec
from tasks.single import answer_single
from tasks.submission import JobRequest, create_job, rerun_job
from tasks.tables import Audit, JobKind, Lane, Role
from tests.samples import ENDPOINT, answer, leased, request_line, started_job

SECRET = "do not tell"
"""Stands in every text that is a user's own."""


def trail(backends: Backends) -> list[Audit]:
    with backends.database.read() as session:
        return list(session.scalars(select(Audit).order_by(Audit.id)))


def actions(backends: Backends, subject: str) -> list[str]:
    return [line.action for line in trail(backends) if line.subject == subject]


def rows_job(backends: Backends) -> str:
    spec = RowsSpec(RowsFormat.JSONL, SECRET + "{{ prompt }}", system=SECRET)
    file = store_file(
        backends, [json.dumps({"prompt": SECRET}).encode()], filename=f"{SECRET}.jsonl", purpose="user_data"
    )
    request = JobRequest(
        kind=JobKind.ROWS,
        endpoint=ENDPOINT,
        model="sim",
        input_file_id=file.id,
        options=spec.to_options(),
        metadata={"note": SECRET},
        idempotency_key=SECRET,
        idempotency_sha256=SECRET,
    )
    return create_job(backends, request).id


def test_every_change_leaves_one_line_of_its_tenant(backends: Backends) -> None:
    database = backends.database
    key = create_key(database, tenant="local", name="k", role=Role.READ)
    revoke_key(database, key.key.id)
    revoke_key(database, key.key.id)
    assert actions(backends, key.key.id) == ["key.created", "key.revoked"]

    file = store_file(backends, [b"x"], filename="f")
    delete_file(backends, file.id, "local")
    assert actions(backends, file.id) == ["file.created", "file.deleted"]

    done = started_job(backends, 1)
    set_lane(database, done, Lane.BULK)
    record_results(
        database, leased(backends, done), [answer(0, status_code=400)], worker="w", lease_s=30, finish=True
    )
    settle(backends, done)
    rerun = rerun_job(backends, "local", done)
    delete_job(database, done)
    assert actions(backends, done) == [
        "job.created",
        "job.in_progress",
        "job.lane",
        "job.finalizing",
        "job.completed",
        "job.deleted",
    ]
    cancel_job(database, rerun.id)
    cancel_job(database, rerun.id)
    settle(backends, rerun.id)
    assert actions(backends, rerun.id) == ["job.created", "job.cancelling", "job.cancelled"]

    lines = trail(backends)
    assert {line.tenant for line in lines} == {"local"}
    assert [line.at_ms for line in lines] == sorted(line.at_ms for line in lines)


def test_no_prompt_template_name_or_secret_is_in_it(sqlite_backends: Backends, celery_app: Celery) -> None:
    backends = sqlite_backends
    key = create_key(backends.database, tenant="local", name="k", role=Role.ADMIN)
    run_intake(backends, rows_job(backends))
    bad = store_file(backends, [SECRET.encode()], filename=SECRET)
    run_intake(backends, create_job(backends, JobRequest(endpoint=ENDPOINT, input_file_id=bad.id)).id)
    good = store_file(backends, [request_line(SECRET, prompt=SECRET)], filename=SECRET)
    run_intake(backends, create_job(backends, JobRequest(endpoint=ENDPOINT, input_file_id=good.id)).id)
    body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": SECRET}]}).encode()
    with pytest.raises(UserError, match="cancelled"):
        answer_single(celery_app, backends, "local", ENDPOINT, body, 0.01)
    lines = trail(backends)
    assert sum(line.action == "job.created" for line in lines) == 4
    assert sum(line.action == "job.failed" for line in lines) == 1
    for line in lines:
        told = f"{line.action} {line.subject} {json.dumps(line.detail)}"
        assert SECRET not in told
        assert key.secret[len(key.key.prefix) :] not in told
