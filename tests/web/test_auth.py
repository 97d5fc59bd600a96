"""Every route is closed to those without a key, and opens by role."""

import pytest
from flask.testing import FlaskClient
from flask_openapi import OpenAPI
from werkzeug.routing import Rule

from tasks.backends import Backends
from tasks.keys import list_keys, revoke_key
from tasks.tables import Role
from tests.web.conftest import Auth

OPEN = {"/healthz", "/login", "/static/<path:filename>"}
"""What needs no key. A route that is not in here, and answers without one, is a hole."""


def address(rule: Rule) -> str:
    """An address that this rule matches."""
    values = {
        name: 7 if "Integer" in type(converter).__name__ else "x"
        for name, converter in rule._converters.items()
    }
    built = rule.build(values)
    assert built is not None
    return built[1]


def routes(site: OpenAPI) -> list[tuple[str, Rule]]:
    found = []
    for rule in site.url_map.iter_rules():
        if rule.rule.startswith("/openapi/"):
            continue  # the description of the API holds nothing of anyone
        found += [(method, rule) for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})]
    return found


def test_no_route_answers_without_a_key(site: OpenAPI, http: FlaskClient) -> None:
    site.config["WTF_CSRF_ENABLED"] = False
    opened = set()
    for method, rule in routes(site):
        answer = http.open(address(rule), method=method)
        if rule.rule.startswith(("/v1/", "/api/")):
            assert answer.status_code == 401, f"{method} {rule.rule}"
            assert answer.get_json()["error"]["type"] == "authentication_error"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        elif not (answer.status_code == 302 and answer.headers["Location"].startswith("/login")):
            opened.add(rule.rule)
    assert opened <= OPEN


def test_a_reading_key_changes_nothing(site: OpenAPI, http: FlaskClient, auth: Auth) -> None:
    headers = auth(Role.READ)
    for method, rule in routes(site):
        if rule.rule.startswith(("/v1/", "/api/")) and method != "GET":
            answer = http.open(address(rule), method=method, headers=headers)
            assert answer.status_code == 403, f"{method} {rule.rule}"
            assert answer.get_json()["error"]["type"] == "permission_error"


def test_only_an_admin_sees_and_changes_keys(http: FlaskClient, auth: Auth) -> None:
    for role, status in ((Role.READ, 403), (Role.SUBMIT, 403), (Role.ADMIN, 200)):
        assert http.get("/api/keys", headers=auth(role)).status_code == status


def test_a_revoked_key_is_refused_at_once(http: FlaskClient, auth: Auth, sqlite_backends: Backends) -> None:
    headers = auth(Role.READ)
    assert http.get("/v1/models", headers=headers).status_code == 200
    revoke_key(sqlite_backends.database, list_keys(sqlite_backends.database)[0].id)
    assert http.get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic eDp5", "Bearer gm-", "Bearer ü", "Bearer " + "x" * 4000]
)
def test_a_header_that_is_no_key_is_refused(http: FlaskClient, header: str) -> None:
    assert http.get("/v1/models", headers={"Authorization": header}).status_code == 401
