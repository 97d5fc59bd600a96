"""Who is calling: a bearer key on the APIs, a session on the pages. Every route is closed by default."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from flask import Flask, Response, current_app, g, redirect, request, session, url_for
from werkzeug.exceptions import Forbidden, Unauthorized

from tasks.backends import Backends
from tasks.keys import authenticate, valid_key
from tasks.tables import Key, Role

API_PATHS = ("/v1/", "/api/")
DOCS_PATH = "/openapi/"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_View = TypeVar("_View", bound=Callable[..., object])


@dataclass(frozen=True)
class Caller:
    """The key that a request came with."""

    key_id: str
    tenant: str
    role: Role
    name: str


def public(view: _View) -> _View:
    """Mark a view that needs no key."""
    view.needs_no_key = True  # type: ignore[attr-defined]
    return view


def needs(role: Role) -> Callable[[_View], _View]:
    """Mark a view that needs a role other than the usual: `read` for GET, `submit` for all else."""

    def mark(view: _View) -> _View:
        view.needed_role = role  # type: ignore[attr-defined]
        return view

    return mark


def checks_token(view: _View) -> _View:
    """Mark a view whose form is read as a stream: it checks the form's token itself."""
    view.checks_token = True  # type: ignore[attr-defined]
    return view


def caller() -> Caller:
    """The caller of the present request; only in views that need a key."""
    found: Caller = g.caller
    return found


def backends() -> Backends:
    """What the application works on."""
    opened: Backends = current_app.extensions["backends"]
    return opened


def is_api_path(path: str) -> bool:
    """Whether errors and keys are those of the APIs, rather than of the pages."""
    return path.startswith(API_PATHS)


def log_in(key: Key) -> None:
    """Open a session for this key in the browser that asked."""
    session.clear()
    session["key_id"] = key.id
    session.permanent = True


def log_out() -> None:
    """End the session."""
    session.clear()


def guard(app: Flask) -> None:
    """Check every request of the application before its view runs."""

    @app.before_request
    def check() -> Response | None:
        if request.endpoint is None or request.endpoint == "static":
            return None
        if request.path.startswith(DOCS_PATH):
            return None  # the description of the API holds nothing of anyone
        view = app.view_functions[request.endpoint]
        key = _bearer_key() if is_api_path(request.path) else _session_key()
        if key is not None:
            g.caller = Caller(key.id, key.tenant, Role(key.role), key.name)
        if getattr(view, "needs_no_key", False):
            return None
        if key is None:
            if is_api_path(request.path):
                raise Unauthorized("No valid API key: send 'Authorization: Bearer gm-...'.")
            return _to_login()
        needed: Role = getattr(view, "needed_role", _usual_role())
        if caller().role.rank < needed.rank:
            raise Forbidden(f"This needs a key with the role '{needed}'; this key has '{key.role}'.")
        return None


def _usual_role() -> Role:
    return Role.READ if request.method in SAFE_METHODS else Role.SUBMIT


def _bearer_key() -> Key | None:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        return None
    return authenticate(backends().database, secret.strip())


def _session_key() -> Key | None:
    key_id = session.get("key_id")
    return valid_key(backends().database, key_id) if isinstance(key_id, str) else None


def _to_login() -> Response:
    target = request.full_path.rstrip("?") if request.method == "GET" else None
    answer = redirect(url_for("login.form", next=target))
    assert isinstance(answer, Response)
    return answer
