"""`POST /v1/chat/completions` and its kind: one request, answered in place."""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from flask import Response
from flask_openapi import APIBlueprint, RequestBody, Tag
from werkzeug.exceptions import TooManyRequests

from tasks.app import app
from tasks.single import answer_single
from tasks.validation import ENDPOINTS
from web.api.answers import KEY_SECURITY, errors
from web.auth import backends, caller
from web.bodies import JSON, read_body

TAG = Tag(name="Requests", description="One request at a time, in the urgent lane.")

SHARE_OF_THREADS = 0.5
"""Waiting requests may hold so many of the threads: others can still be served."""

api = APIBlueprint("single", __name__, abp_tags=[TAG], abp_security=KEY_SECURITY)

_OBJECT: dict[str, Any] = {JSON: {"schema": {"type": "object"}}}


@cache
def _seats(threads: int) -> threading.BoundedSemaphore:
    return threading.BoundedSemaphore(max(1, int(threads * SHARE_OF_THREADS)))


def _view(endpoint: str) -> Callable[[], Response]:
    def view() -> Response:
        """Run one request and wait for its answer

        The body is the engine's to judge, and the answer is the engine's. It waits in the urgent lane, for
        `sync_timeout_s` at most.
        """
        settings = backends().settings
        body = read_body(settings.max_line_bytes, JSON)
        seats = _seats(settings.web_threads)
        if not seats.acquire(blocking=False):
            raise TooManyRequests("Too many requests wait for an answer: send a batch, or try again.")
        try:
            result = answer_single(app, backends(), caller().tenant, endpoint, body, settings.sync_timeout_s)
        finally:
            seats.release()
        return Response(result.body, status=result.status_code, mimetype=JSON)

    view.__name__ = endpoint.removeprefix("/v1/").replace("/", "_")
    return view


for _endpoint in ENDPOINTS:
    api.post(
        _endpoint,
        request_body=RequestBody(content=_OBJECT, required=True),
        responses={200: {"content": _OBJECT}, **errors(404, 413, 415, 422, 429, 500, 504)},
    )(_view(_endpoint))
