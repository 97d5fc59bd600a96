"""`/api/jobs` over one job's life: list, look, change, cancel, run again, delete, read results."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from flask.testing import FlaskClient

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.jobs import get_job
from tasks.tables import JobStatus, Role
from tests.samples import answer, change_job, good_input, leased, outcomes_of, started_job, submit
from tests.web.conftest import Auth

UNKNOWN = "batch_000000000000000000000000"


def finished(backends: Backends, job_id: str, *failing: int, count: int = 3) -> None:
    """Give the job its results, some of them refusals."""
    lease = leased(backends, job_id)
    outcomes = [
        answer(index, status_code=400, body=b'{"error":{"message":"too long"}}')
        if index in failing
        else answer(
            index,
            body=json.dumps({"choices": [{"message": {"content": f"answer {index}"}}]}).encode(),
            input_tokens=5,
            output_tokens=7,
        )
        for index in range(count)
    ]
    record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)


def ended(backends: Backends, *failing: int) -> str:
    """A completed job of three requests; its id."""
    job_id = started_job(backends, 3)
    finished(backends, job_id, *failing)
    now = get_job(backends.database, job_id).in_progress_ms
    change_job(backends, job_id, status=JobStatus.COMPLETED, completed_ms=now)
    return job_id


def error_of(answer: Any) -> dict[str, Any]:
    error: dict[str, Any] = answer.get_json()["error"]
    return error


def test_a_job_shows_its_progress_figures_and_times(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = ended(sqlite_backends, 1)
    job = http.get(f"/api/jobs/{job_id}", headers=auth(Role.READ)).get_json()
    assert job["status"] == "completed"
    assert job["counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert job["progress"] == 1.0
    assert job["usage"]["total_tokens"] == 24
    assert job["failures"] == {"400": 1}
    assert job["input_file"]["filename"] == "in.jsonl"
    created = datetime.fromisoformat(job["created_at"])
    assert created.utcoffset() == UTC.utcoffset(None)
    assert abs((datetime.now(UTC) - created).total_seconds()) < 300
    assert http.get(job["links"]["results"], headers=auth()).status_code == 200


def test_jobs_come_newest_first_page_by_page_without_loss(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    made = [submit(sqlite_backends, good_input(1)) for _ in range(7)]
    headers, seen, after = auth(), [], None
    while True:
        query = {"limit": 3} if after is None else {"limit": 3, "after": after}
        page = http.get("/api/jobs", headers=headers, query_string=query).get_json()
        seen += [job["id"] for job in page["data"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(seen) == sorted(made)
    created = [get_job(sqlite_backends.database, job_id).created_ms for job_id in seen]
    assert created == sorted(created, reverse=True)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=completed", {"done"}),
        ("status=completed&status=validating", {"done", "waiting"}),
        ("status=failed", set()),
        ("model=sim", {"done"}),
        ("model=other", set()),
        ("search=in.json", {"done", "waiting"}),
        ("search=100%25", set()),
        ("kind=requests", {"done", "waiting"}),
        ("kind=rows&kind=rerun", set()),
    ],
)
def test_the_list_is_filtered(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, query: str, found: set[str]
) -> None:
    names = {ended(sqlite_backends): "done", submit(sqlite_backends, good_input(1)): "waiting"}
    page = http.get(f"/api/jobs?{query}", headers=auth()).get_json()
    assert {names[job["id"]] for job in page["data"]} == found


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=abc", "limit"),
        ("limit=99999999999999999999999", "limit"),
        ("status=done", "status"),
        ("kind=single-ish", "kind"),
        ("after=nothing", "after"),
        ("stauts=failed", "stauts"),
        ("search=" + "x" * 201, "search"),
        ("model=a%00b", "model"),
    ],
)
def test_a_wrong_query_names_its_parameter(http: FlaskClient, auth: Auth, query: str, param: str) -> None:
    refusal = http.get(f"/api/jobs?{query}", headers=auth())
    assert refusal.status_code == 400
    assert error_of(refusal)["param"].split(".")[0] == param


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/results"),
        ("GET", "/results/download"),
        ("GET", "/events"),
        ("POST", "/cancel"),
        ("POST", "/rerun"),
        ("PATCH", ""),
        ("DELETE", ""),
    ],
)
def test_unknown_jobs_and_those_of_others_are_the_same_404(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, method: str, path: str
) -> None:
    body: dict[str, Any] = {"json": {"priority": "bulk"}} if method == "PATCH" else {}
    theirs = started_job(sqlite_backends, 1)
    change_job(sqlite_backends, theirs, tenant="other")
    for job_id in (theirs, UNKNOWN):
        refusal = http.open(f"/api/jobs/{job_id}{path}", method=method, headers=auth(), **body)
        assert refusal.status_code == 404
        assert error_of(refusal)["message"] == f"No such job: {job_id!r}."


@pytest.mark.parametrize(("name", "status"), [("%00", 400), ("a%00b", 400), ("%FF", 404), ("x" * 999, 404)])
def test_ids_that_are_none_are_refused(http: FlaskClient, auth: Auth, name: str, status: int) -> None:
    assert http.get(f"/api/jobs/{name}", headers=auth()).status_code == status


def test_cancelling_keeps_what_is_finished_and_may_be_repeated(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = started_job(sqlite_backends, 3)
    for _ in range(2):
        answered = http.post(f"/api/jobs/{job_id}/cancel", headers=auth(Role.SUBMIT))
        assert answered.status_code == 200
        assert answered.get_json()["status"] == "cancelling"


def test_a_job_that_has_ended_cannot_be_cancelled_or_hurried(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = ended(sqlite_backends)
    refusal = http.post(f"/api/jobs/{job_id}/cancel", headers=auth())
    assert (refusal.status_code, error_of(refusal)["code"]) == (409, "batch_not_cancellable")
    refusal = http.patch(f"/api/jobs/{job_id}", headers=auth(), json={"priority": "urgent"})
    assert (refusal.status_code, error_of(refusal)["code"]) == (409, "job_has_ended")


def test_the_priority_of_a_running_job_changes(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = started_job(sqlite_backends, 3)
    answered = http.patch(f"/api/jobs/{job_id}", headers=auth(), json={"priority": "urgent"})
    assert answered.get_json()["priority"] == "urgent"
    assert get_job(sqlite_backends.database, job_id).lane == "urgent"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ('{"priority": "high"}', "application/json", 400),
        ('{"priority": "bulk", "model": "x"}', "application/json", 400),
        ("{}", "application/json", 400),
        ("[]", "application/json", 400),
        ('"{}"', "application/json", 400),
        ("{", "application/json", 400),
        ("", "application/json", 400),
        ('{"priority": "bulk"}', "text/plain", 415),
        ('{"priority": "\\ud800"}', "application/json", 400),
    ],
)
def test_a_wrong_body_is_refused(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, body: str, kind: str, status: int
) -> None:
    job_id = started_job(sqlite_backends, 3)
    refusal = http.patch(f"/api/jobs/{job_id}", headers=auth(), data=body, content_type=kind)
    assert refusal.status_code == status
    assert error_of(refusal)["message"]


def test_what_did_not_succeed_runs_again_as_a_linked_job(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = ended(sqlite_backends, 0, 2)
    answered = http.post(
        f"/api/jobs/{job_id}/rerun", headers=auth(), json={"priority": "bulk", "window": "2h"}
    )
    assert answered.status_code == 201
    job = answered.get_json()
    assert (job["parent_id"], job["kind"], job["priority"]) == (job_id, "rerun", "bulk")
    assert answered.headers["Location"] == f"/api/jobs/{job['id']}"
    lifetime = datetime.fromisoformat(job["deadline"]) - datetime.fromisoformat(job["created_at"])
    assert lifetime.total_seconds() == 7200


def test_a_rerun_needs_no_body(http: FlaskClient, auth: Auth, sqlite_backends: Backends) -> None:
    job_id = ended(sqlite_backends, 0)
    assert http.post(f"/api/jobs/{job_id}/rerun", headers=auth()).status_code == 201


def test_nothing_runs_again_where_all_succeeded_or_the_job_still_runs(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    for job_id, code in (
        (ended(sqlite_backends), "nothing_to_rerun"),
        (started_job(sqlite_backends, 1), "job_not_ended"),
    ):
        refusal = http.post(f"/api/jobs/{job_id}/rerun", headers=auth())
        assert (refusal.status_code, error_of(refusal)["code"]) == (409, code)


def test_a_deleted_job_is_gone_and_a_running_one_cannot_be_deleted(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = ended(sqlite_backends)
    answered = http.delete(f"/api/jobs/{job_id}", headers=auth())
    assert (answered.status_code, answered.data) == (204, b"")
    assert http.get(f"/api/jobs/{job_id}", headers=auth()).status_code == 404
    running = started_job(sqlite_backends, 1)
    assert http.delete(f"/api/jobs/{running}", headers=auth()).status_code == 409


def test_results_come_by_page_in_input_order_with_their_prompts(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = ended(sqlite_backends, 1)
    url = f"/api/jobs/{job_id}/results"
    first = http.get(f"{url}?limit=2&prompts=true", headers=auth()).get_json()
    assert [(row["index"], row["custom_id"], row["status"]) for row in first["data"]] == [
        (0, "r0", "succeeded"),
        (1, "r1", "failed"),
    ]
    assert first["data"][0]["text"] == "answer 0"
    assert first["data"][0]["prompt"] == "Hello"
    assert first["data"][1]["error"] == {"code": None, "message": "too long"}
    assert first["data"][1]["status_code"] == 400
    second = http.get(f"{url}?limit=2&after={first['next']}", headers=auth()).get_json()
    assert [row["index"] for row in second["data"]] == [2]
    assert second["data"][0]["prompt"] is None
    assert second["next"] is None


@pytest.mark.parametrize(
    ("query", "indices"),
    [("which=output", [0, 2]), ("which=errors", [1]), ("search=R2", [2]), ("search=_", [])],
)
def test_results_are_filtered(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, query: str, indices: list[int]
) -> None:
    job_id = ended(sqlite_backends, 1)
    page = http.get(f"/api/jobs/{job_id}/results?{query}", headers=auth()).get_json()
    assert [row["index"] for row in page["data"]] == indices


@pytest.mark.parametrize("after", ["-2", "9223372036854775808", "1e3", "x"])
def test_a_wrong_place_to_read_from_is_refused(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, after: str
) -> None:
    job_id = ended(sqlite_backends)
    refusal = http.get(f"/api/jobs/{job_id}/results?after={after}", headers=auth())
    assert (refusal.status_code, error_of(refusal)["param"]) == (400, "after")


@pytest.mark.parametrize(
    ("kind", "media_type", "start"),
    [
        ("jsonl", "application/jsonl", b'{"id":"batch_req_'),
        ("csv", "text/csv", b"custom_id,"),
        ("parquet", "application/vnd.apache.parquet", b"PAR1"),
    ],
)
def test_results_download_in_each_format(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, kind: str, media_type: str, start: bytes
) -> None:
    job_id = ended(sqlite_backends, 1)
    answered = http.get(f"/api/jobs/{job_id}/results/download?format={kind}", headers=auth())
    assert answered.status_code == 200
    assert answered.mimetype == media_type
    assert answered.data.startswith(start)
    assert answered.headers["X-Gristmill-Complete"] == "true"
    assert answered.headers["Content-Disposition"].startswith("attachment; filename")


def test_a_download_of_a_running_job_has_what_is_finished_and_says_so(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = started_job(sqlite_backends, 3)
    lease = leased(sqlite_backends, job_id)
    one = outcomes_of(sqlite_backends, lease, [1])
    record_results(sqlite_backends.database, lease, one, worker="w", lease_s=30, finish=False)
    answered = http.get(f"/api/jobs/{job_id}/results/download", headers=auth())
    assert answered.headers["X-Gristmill-Complete"] == "false"
    assert [json.loads(line)["custom_id"] for line in answered.data.splitlines()] == ["r1"]
