"""`/login` and `/logout`: a browser shows its key once, and gets a session."""

from urllib.parse import urlsplit

from flask import Blueprint, Response, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from tasks.keys import authenticate, key_id_of_login_token, valid_key
from tasks.tables import Role
from web.auth import backends, log_in, log_out, needs, public
from web.limits import LOGIN_ATTEMPTS, limiter

pages = Blueprint("login", __name__)


@pages.get("/login")
@public
def form() -> ResponseReturnValue:
    """The form for a key; with the token of a login link, straight in."""
    token = request.args.get("token")
    if token is None:
        return render_template("login.html", next=_local(request.args.get("next")))
    key_id = key_id_of_login_token(backends().settings, token)
    key = None if key_id is None else valid_key(backends().database, key_id)
    if key is None:
        message = "This link is too old or not valid. Paste your key instead, or start Gristmill again."
        return Response(render_template("login.html", message=message, next=None), status=401)
    log_in(key)
    return redirect(url_for("submit_page.form"))


@pages.post("/login")
@public
@limiter.limit(LOGIN_ATTEMPTS)
def enter() -> ResponseReturnValue:
    """Check the key."""
    target = _local(request.form.get("next"))
    key = authenticate(backends().database, request.form.get("key", "").strip())
    if key is None:
        message = "This is no valid key. Keys begin with gm- and are shown once, when they are made."
        return Response(render_template("login.html", message=message, next=target), status=401)
    log_in(key)
    return redirect(target or url_for("submit_page.form"))


@pages.post("/logout")
@needs(Role.READ)
def leave() -> ResponseReturnValue:
    """End the session."""
    log_out()
    return redirect(url_for("login.form"))


def _local(target: str | None) -> str | None:
    """An address on this server, or none: nobody is led elsewhere by a link."""
    if target is None or not target.startswith("/") or target.startswith(("//", "/\\")):
        return None
    parts = urlsplit(target)
    return target if not parts.netloc and not parts.scheme and target.isprintable() else None
