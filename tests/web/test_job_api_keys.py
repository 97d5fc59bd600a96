"""`/api/key`, `/api/keys`, `/api/fleet` and `/api/models`."""

from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import insert

from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.tables import Role, Worker
from tests.samples import put_on_runway, started_job
from tests.web.conftest import Auth


def test_a_key_says_who_it_is(http: FlaskClient, auth: Auth) -> None:
    who = http.get("/api/key", headers=auth(Role.READ, tenant="acme")).get_json()
    assert (who["tenant"], who["role"], who["name"]) == ("acme", "read", "test")


def test_a_new_key_works_shows_its_secret_once_and_ends_when_it_is_revoked(
    http: FlaskClient, auth: Auth
) -> None:
    admin = auth()
    made = http.post("/api/keys", headers=admin, json={"name": "ci", "role": "submit"})
    assert made.status_code == 201
    key = made.get_json()
    assert key["secret"].startswith(key["prefix"])
    headers = {"Authorization": f"Bearer {key['secret']}"}
    assert http.get("/api/key", headers=headers).get_json()["id"] == key["id"]
    listed = http.get("/api/keys", headers=admin)
    assert key["secret"] not in listed.get_data(as_text=True)
    assert key["id"] in {shown["id"] for shown in listed.get_json()["data"]}
    for _ in range(2):
        revoked = http.delete(f"/api/keys/{key['id']}", headers=admin)
        assert revoked.get_json()["revoked_at"] is not None
    assert http.get("/api/key", headers=headers).status_code == 401


@pytest.mark.parametrize("role", [Role.READ, Role.SUBMIT])
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", ""), ("DELETE", "/key_1")])
def test_only_administrators_see_and_change_keys(
    http: FlaskClient, auth: Auth, role: Role, method: str, path: str
) -> None:
    body: dict[str, Any] = {"json": {"name": "x"}} if method == "POST" else {}
    refusal = http.open(f"/api/keys{path}", method=method, headers=auth(role), **body)
    assert (refusal.status_code, refusal.get_json()["error"]["code"]) == (403, "insufficient_role")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": " "}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "x", "role": "root"}, "role"),
        ({"name": "x", "tenant": ""}, "tenant"),
        ({"name": "x", "colour": "red"}, "colour"),
    ],
)
def test_a_key_that_cannot_be_is_refused(
    http: FlaskClient, auth: Auth, asked: dict[str, Any], param: str
) -> None:
    refusal = http.post("/api/keys", headers=auth(), json=asked)
    assert (refusal.status_code, refusal.get_json()["error"]["param"]) == (400, param)


def test_an_unknown_key_is_not_found(http: FlaskClient, auth: Auth) -> None:
    assert http.delete("/api/keys/key_1", headers=auth()).status_code == 404


def test_the_fleet_shows_live_workers_and_what_waits(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    put_on_runway(sqlite_backends, started_job(sqlite_backends, 5))
    with sqlite_backends.database.write() as session:
        rows: list[dict[str, Any]] = [
            {"id": "w1", "heartbeat_ms": now_ms(), "started_ms": now_ms()},
            {"id": "gone", "heartbeat_ms": 1, "started_ms": 1},
        ]
        for row in rows:
            figures = {"running_requests": 3}
            session.execute(
                insert(Worker).values(model="sim", host="h", pid=1, devices="", figures=figures, **row)
            )
    fleet = http.get("/api/fleet", headers=auth(Role.READ)).get_json()
    assert [(worker["id"], worker["figures"]) for worker in fleet["workers"]] == [
        ("w1", {"running_requests": 3})
    ]
    assert fleet["lanes"] == [{"model": "sim", "priority": "normal", "pending": 0, "queued": 5, "leased": 0}]
    models = {model["id"]: model for model in http.get("/api/models", headers=auth()).get_json()["data"]}
    assert (models["sim"]["workers"], models["sim"]["is_default"]) == (1, True)
    assert models["tiny-embed"]["endpoints"] == ["/v1/embeddings", "/v1/score", "/v1/rerank"]
