"""The pages without a browser: who gets in, what forms are refused for, and what becomes of their files."""

import io
import re

import pytest
from flask.testing import FlaskClient
from flask_openapi import OpenAPI

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.jobs import get_job
from tasks.keys import create_key
from tasks.tables import JobStatus, Role
from tests.samples import leased, outcomes_of, started_job, submit
from tests.web.conftest import Browser, token_of

JOB_ACTIONS = ("cancel", "priority", "rerun", "delete")
FORMS = (
    "/",
    "/login",
    "/logout",
    "/keys",
    "/keys/x/revoke",
    *(f"/jobs/x/{action}" for action in JOB_ACTIONS),
)


@pytest.mark.parametrize(
    ("target", "lands_at"),
    [
        ("/jobs?status=failed", "/jobs?status=failed"),
        ("https://elsewhere.example/", "/"),
        ("//elsewhere.example/", "/"),
        ("/\\elsewhere.example/", "/"),
        ("/\t/elsewhere.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_on_but_never_to_another_host(
    http: FlaskClient, sqlite_backends: Backends, target: str, lands_at: str
) -> None:
    secret = create_key(sqlite_backends.database, tenant="local", name="me", role=Role.READ).secret
    answer = http.post(
        "/login",
        data={"key": secret, "next": target, "csrf_token": token_of(http, "/login")},
        environ_overrides={"REMOTE_ADDR": f"10.0.1.{len(target)}"},
    )
    assert answer.status_code == 302
    assert answer.headers["Location"] == lands_at
    assert http.get("/jobs").status_code == 200


@pytest.mark.parametrize("token", ["", "forged", "ImtleV8xIg.aaaa.bbbb"])
def test_a_login_link_that_is_not_ours_lets_nobody_in(http: FlaskClient, token: str) -> None:
    answer = http.get("/login", query_string={"token": token})
    assert answer.status_code == 401
    assert "not valid" in answer.text
    assert http.get("/jobs").status_code == 302


def test_keys_cannot_be_guessed_fast(http: FlaskClient) -> None:
    data = {"key": "gm-guess", "csrf_token": token_of(http, "/login")}
    statuses = [
        http.post("/login", data=data, environ_overrides={"REMOTE_ADDR": "10.0.2.1"}).status_code
        for _ in range(11)
    ]
    assert statuses == [401] * 10 + [429]


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("token", [None, "forged"])
def test_no_form_works_without_its_token(browser: Browser, path: str, token: str | None) -> None:
    data = {} if token is None else {"csrf_token": token}
    answer = browser().post(path, data={**data, "file": (io.BytesIO(b""), "")})
    assert answer.status_code == 400
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path", [path for path in FORMS if path.startswith(("/jobs", "/keys")) or path == "/"]
)
def test_a_reading_session_changes_nothing(browser: Browser, path: str) -> None:
    client = browser(Role.READ)
    answer = client.post(path, data={"csrf_token": token_of(client), "file": (io.BytesIO(b""), "")})
    assert answer.status_code == 403


def test_a_reading_session_sees_no_buttons_that_submit(browser: Browser, sqlite_backends: Backends) -> None:
    job_id = started_job(sqlite_backends, 2)
    client = browser(Role.READ)
    for path in ("/", f"/jobs/{job_id}"):
        actions = re.findall(r'method="post" action="([^"]+)"', client.get(path).text)
        assert actions == ["/logout"]
    assert client.get("/keys").status_code == 403


def test_the_jobs_of_another_tenant_are_not_there(browser: Browser, sqlite_backends: Backends) -> None:
    job_id = started_job(sqlite_backends, 2)
    client = browser(tenant="other")
    assert job_id not in client.get("/jobs").text
    for path in ("", "/live", "/requests", "/requests/0", "/requests/0/request", "/download?format=csv"):
        assert client.get(f"/jobs/{job_id}{path}").status_code == 404, path
    data = {"csrf_token": token_of(client), "priority": "bulk"}
    for action in JOB_ACTIONS:
        assert client.post(f"/jobs/{job_id}/{action}", data=data).status_code == 404, action
    assert get_job(sqlite_backends.database, job_id).status == JobStatus.IN_PROGRESS


def test_older_jobs_are_on_further_pages_and_filters_stay(
    browser: Browser, sqlite_backends: Backends
) -> None:
    ids = [submit(sqlite_backends, b"x", model="sim") for _ in range(25)]
    submit(sqlite_backends, b"x", model="other")
    client = browser()
    first = client.get("/jobs?model=sim&status=validating&q=in.js").text
    further = re.search(r'href="(/jobs\?after=[^"]+)"', first)
    assert further
    second = client.get(further[1].replace("&amp;", "&")).text
    shown = [re.findall(r'href="/jobs/(batch_\w+)"', page) for page in (first, second)]
    assert [len(page) for page in shown] == [20, 5]
    assert sorted(shown[0] + shown[1]) == sorted(ids)
    assert "No jobs with this filter" in client.get("/jobs?status=completed").text


@pytest.mark.parametrize(
    "path", ["/", "/submit", "/jobs", "/fleet", "/models", "/keys", "/login", "/nowhere"]
)
def test_no_page_needs_what_the_content_policy_forbids(browser: Browser, path: str) -> None:
    answer = browser().get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.search(
        r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=\"/static/)|https?://(?!localhost)", answer.text
    )
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("mill.example", "http://mill.example:"),
        ("10.0.0.7:8800", "http://10.0.0.7:"),
        ("[::1]:8800", "http://[::1]:"),
    ],
)
def test_flower_is_linked_on_the_host_that_the_browser_knows(
    site: OpenAPI, browser: Browser, host: str, shown: str
) -> None:
    cookie = browser().get_cookie("gristmill_session")
    assert cookie is not None
    sent = {"Host": host, "Cookie": f"{cookie.key}={cookie.value}"}
    page = site.test_client(use_cookies=False).get("/fleet", headers=sent).text
    assert f'href="{shown}' in page


def test_a_wrong_key_form_says_what_is_wrong(browser: Browser) -> None:
    client = browser()
    token = token_of(client)
    for fields, message in (
        ({"name": "", "role": "read"}, "&#39;name&#39; must have"),
        ({"name": "x", "role": "emperor"}, "&#39;role&#39; must be read"),
        ({"name": "x" * 101, "role": "read"}, "&#39;name&#39; must have"),
    ):
        answer = client.post("/keys", data={"csrf_token": token, **fields})
        assert answer.status_code == 400
        assert message in answer.text


@pytest.mark.parametrize("after", ["-1", "x", "²", "9" * 30, "99999999999"])
def test_a_place_that_no_request_has_shows_a_page_all_the_same(
    browser: Browser, sqlite_backends: Backends, after: str
) -> None:
    job_id = started_job(sqlite_backends, 2)
    client = browser()
    assert client.get(f"/jobs/{job_id}", query_string={"after": after, "which": after}).status_code == 200
    assert client.get(f"/jobs/{job_id}/requests/{after}").status_code == 404


def test_both_bodies_of_a_request_are_there_as_they_went_over_the_wire(
    browser: Browser, sqlite_backends: Backends
) -> None:
    job_id = started_job(sqlite_backends, 2)
    lease = leased(sqlite_backends, job_id)
    one = outcomes_of(sqlite_backends, lease, [1])
    record_results(sqlite_backends.database, lease, one, worker="w", lease_s=30, finish=False)
    client = browser()
    assert client.get(f"/jobs/{job_id}/requests/1/answer").get_json() == {"of": 1}
    asked = client.get(f"/jobs/{job_id}/requests/1/request").get_json()
    assert asked["messages"] == [{"role": "user", "content": "Hello"}]
    for path in ("1/both", "0/answer", "0/request"):
        assert client.get(f"/jobs/{job_id}/requests/{path}").status_code == 404


def test_a_session_ends_with_the_log_out(browser: Browser) -> None:
    client = browser(Role.READ)
    assert client.post("/logout", data={"csrf_token": token_of(client)}).headers["Location"] == "/login"
    assert client.get("/jobs").headers["Location"] == "/login?next=/jobs"
