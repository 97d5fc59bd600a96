"""The web server: gunicorn around the application, threads for clients that wait."""

import sys
from typing import Any

from gunicorn.app.base import BaseApplication

from config.settings import Settings
from web.app import create_app

GRACE_S = 10
"""Requests that still run when the server is told to stop get so long; streams are cut."""

REQUEST_LINE_BYTES = 8190

SWITCH_S = 0.0005
"""How long a thread keeps the interpreter at most. Each step of a query gives it up; with the usual 5 ms a
short read would wait behind an upload at every one of them."""


class _Server(BaseApplication):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        settings = self._settings
        options = {
            "bind": f"{settings.web_host_in_urls}:{settings.web_port}",
            "worker_class": "gthread",
            "workers": settings.web_processes,
            "threads": settings.web_threads,
            # With gthread this is the time a process may go without a sign of life, not that of a request.
            "timeout": 60,
            "graceful_timeout": GRACE_S,
            "keepalive": 5,
            "limit_request_line": REQUEST_LINE_BYTES,
            "proc_name": "gristmill-web",
            "loglevel": "warning",
            # The application believes the proxy's headers, or nobody's.
            "forwarded_allow_ips": "",
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        sys.setswitchinterval(SWITCH_S)
        # In each process after the fork: connections are not shared.
        return create_app(self._settings)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C; the database must have been migrated."""
    _Server(settings).run()
