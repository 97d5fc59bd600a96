"""The web application in this process: its test client, and keys."""

import re
from collections.abc import Callable, Iterator

import pytest
from flask.testing import FlaskClient
from flask_openapi import OpenAPI
from pydantic import SecretStr

from tasks.backends import Backends
from tasks.keys import create_key, login_token
from tasks.tables import Role
from web.app import create_app

Auth = Callable[..., dict[str, str]]
"""Makes a key of a role and a tenant; gives the headers that carry it."""

Browser = Callable[..., FlaskClient]
"""Makes a key of a role and a tenant; gives a client that is logged in with it."""

TOKEN = re.compile(r'name="csrf_token" value="([^"]+)"')


def token_of(client: FlaskClient, path: str = "/") -> str:
    """The token that the forms of this client carry."""
    found = TOKEN.search(client.get(path).text)
    assert found
    return found[1]


@pytest.fixture
def site(sqlite_backends: Backends, redis_url: str) -> Iterator[OpenAPI]:
    """The application on a fresh database."""
    app = create_app(sqlite_backends.settings.model_copy(update={"redis_url": SecretStr(redis_url)}))
    yield app
    app.extensions["backends"].database.close()


@pytest.fixture
def http(site: OpenAPI) -> FlaskClient:
    """Its client, without a key."""
    return site.test_client()


@pytest.fixture
def auth(sqlite_backends: Backends) -> Auth:
    """Headers with a new key."""

    def make(role: Role = Role.ADMIN, tenant: str = "local") -> dict[str, str]:
        key = create_key(sqlite_backends.database, tenant=tenant, name="test", role=role)
        return {"Authorization": f"Bearer {key.secret}"}

    return make


@pytest.fixture
def browser(site: OpenAPI, sqlite_backends: Backends) -> Browser:
    """Clients with a session."""

    def open_one(role: Role = Role.ADMIN, tenant: str = "local") -> FlaskClient:
        key = create_key(sqlite_backends.database, tenant=tenant, name="test", role=role).key
        client = site.test_client()
        token = login_token(sqlite_backends.settings, key.id)
        assert client.get("/login", query_string={"token": token}).status_code == 302
        return client

    return open_one
