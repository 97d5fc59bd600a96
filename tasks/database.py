"""One way to the database, SQLite or PostgreSQL: transactions, their isolation, and migrations."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event, make_url
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

SQLITE_BUSY_TIMEOUT_S = 30
"""How long a SQLite writer waits for its turn. Writes are short; many processes may queue."""


POSTGRESQL_TIMEOUTS = {"connect_timeout": 5, "tcp_user_timeout": 30_000}
"""Seconds to connect; milliseconds without a sign of the other side. A host that is gone says nothing."""


class Database:
    """A pool of connections. Thread-safe; make one per process.

    `write()` and `read()` each give a session in one transaction, committed at the end of the block and
    rolled back if it raises. On SQLite a write takes the write lock at its start (BEGIN IMMEDIATE): a
    transaction that reads first and asks for the lock later fails at once whenever another one wrote.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self.url = url
        if self.is_sqlite:
            if parsed.database:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            self._engine = create_engine(
                url, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_S, "isolation_level": None}
            )
            event.listen(self._engine, "connect", _set_up_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        else:
            self._engine = create_engine(
                url,
                pool_pre_ping=True,
                pool_size=10,
                max_overflow=30,
                connect_args=POSTGRESQL_TIMEOUTS,
            )
        self._writer = self._engine.execution_options(gristmill_write=True)
        # SQLite's own wait for the write lock is a sleep that grows to a tenth of a second: threads of
        # one process take turns here instead, and only processes meet there.
        self._turn: AbstractContextManager[object] = threading.Lock() if self.is_sqlite else nullcontext()

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that may change rows."""
        with self._turn, Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads, from one consistent snapshot on SQLite."""
        with Session(self._engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection that reads all its rows as they were at one moment, in a stream."""
        engine = self._engine
        if not self.is_sqlite:
            engine = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def load(self) -> Iterator[Connection]:
        """A connection that writes many rows in one transaction."""
        with self._turn, self._writer.connect() as connection, connection.begin():
            yield connection

    def revision(self) -> str:
        """The revision of the tables."""
        with self._engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision() or ""

    def known_revisions(self) -> set[str]:
        """All revisions that this version can come from."""
        return {script.revision for script in ScriptDirectory.from_config(_migrations()).walk_revisions()}

    def migrate(self) -> None:
        """Bring the tables to this version of Gristmill; safe with several processes at once."""
        config = _migrations()
        with self._writer.connect() as connection, _tables_may_be_rebuilt(connection), connection.begin():
            if not self.is_sqlite:
                # One migration at a time; released when the transaction ends.
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(712348)")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def close(self) -> None:
        """Close all idle connections."""
        self._engine.dispose()


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


@contextmanager
def _tables_may_be_rebuilt(connection: Connection) -> Iterator[None]:
    """SQLite changes a column by copying its table and dropping the old one, which must not cascade."""
    if connection.dialect.name != "sqlite":
        yield
        return
    # Outside any transaction, where alone the pragma has an effect.
    sqlite: Any = connection.connection.driver_connection
    sqlite.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        sqlite.execute("PRAGMA foreign_keys = ON")


def _set_up_sqlite(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
    _use_write_ahead_log(connection)
    for pragma in (
        # Commits survive the death of any process; a power cut may cost the last moments.
        "synchronous = NORMAL",
        "foreign_keys = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Processes that open a new file together hold what each other waits for: SQLite then fails at once."""
    patience_ends = time.monotonic() + SQLITE_BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > patience_ends:
                raise
        time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    options: dict[str, Any] = dict(connection.get_execution_options())
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("gristmill_write") else "BEGIN")
