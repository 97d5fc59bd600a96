"""`/api/jobs/{id}/events`: a job's progress as server-sent events."""

import threading
import time
from collections.abc import Iterator

from flask import Response, stream_with_context
from flask_openapi import APIBlueprint

from tasks.backends import Backends
from tasks.errors import NotFound
from tasks.jobs import get_job
from tasks.tables import FINAL_STATUSES
from web.api.answers import KEY_SECURITY, errors
from web.api.job_view import show_job
from web.api.jobs import TAG, JobPath
from web.auth import backends, caller

LOOK_S = 1.0
"""Time between two looks at the job: as often as workers write results."""

HEARTBEAT_S = 15.0
"""A comment after so long without an event: proxies close what is silent."""

LIFETIME_S = 120.0
"""A stream holds a thread of the server; after so long it ends, and the client asks again by itself."""

SHARE_OF_THREADS = 0.5
"""Streams may hold so many of the threads. Beyond, each ends after one event: the client polls."""

RETRY_MS = 2_000
"""How long a client waits before it asks again."""

api = APIBlueprint("events", __name__, url_prefix="/api/jobs", abp_tags=[TAG], abp_security=KEY_SECURITY)


class _Streams:
    """How many streams this process serves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0

    def enter(self, most: int) -> bool:
        """Count one in; whether it may stay beyond its first event."""
        with self._lock:
            self._open += 1
            return self._open <= most

    def leave(self) -> None:
        """Count one out."""
        with self._lock:
            self._open -= 1


_streams = _Streams()


@api.get("/<string:job_id>/events", responses={200: {"content": {"text/event-stream": {}}}, **errors(404)})
def watch(path: JobPath) -> Response:
    """Watch a job's progress as server-sent events

    `progress` events carry the job as `GET /api/jobs/{job_id}` shows it, whenever it has changed; the last
    one is followed by an `end` event. The stream also ends by itself after two minutes: ask again.
    """
    job = get_job(backends().database, path.job_id, caller().tenant)
    events = stream_with_context(_events(backends(), job.id, caller().tenant))
    return Response(events, mimetype="text/event-stream", headers={"Cache-Control": "no-store"})


def _events(opened: Backends, job_id: str, tenant: str) -> Iterator[str]:
    may_stay = _streams.enter(max(1, int(opened.settings.web_threads * SHARE_OF_THREADS)))
    try:
        yield f"retry: {RETRY_MS}\n\n"
        yield from _until_end(opened, job_id, tenant, LIFETIME_S if may_stay else 0.0)
    finally:
        _streams.leave()


def _until_end(opened: Backends, job_id: str, tenant: str, lifetime_s: float) -> Iterator[str]:
    end = time.monotonic() + lifetime_s
    shown, number, sent_at = "", 0, time.monotonic()
    while True:
        try:
            job = get_job(opened.database, job_id, tenant)
        except NotFound:
            yield _event("end", number + 1, '{"status":"deleted"}')
            return
        seen = show_job(opened.database, job).model_dump_json()
        if seen != shown:
            shown, number, sent_at = seen, number + 1, time.monotonic()
            yield _event("progress", number, seen)
        elif time.monotonic() - sent_at >= HEARTBEAT_S:
            sent_at = time.monotonic()
            yield ": still here\n\n"
        if job.status in FINAL_STATUSES:
            yield _event("end", number + 1, f'{{"status":"{job.status}"}}')
            return
        if time.monotonic() >= end:
            return
        time.sleep(LOOK_S)


def _event(name: str, number: int, data: str) -> str:
    return f"event: {name}\nid: {number}\ndata: {data}\n\n"
