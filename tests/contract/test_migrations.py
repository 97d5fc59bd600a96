"""Migrations: from the first version with its rows, and to exactly the tables of the code."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, event, select, text

import tasks
from tasks.backends import Backends
from tasks.database import Database
from tasks.jobs import delete_job, get_job
from tasks.listing import list_files, list_jobs
from tasks.purge import purge_jobs
from tasks.submission import rerun_job
from tasks.tables import Chunk, File, Job, Result, Table
from tests.postgresql import PostgresServer

ROWS = """
INSERT INTO files (id, tenant, purpose, filename, bytes, sha256, storage_key, created_ms)
VALUES ('file-1', 'local', 'batch', 'in.jsonl', 1, 'x', 'files/1', 1);
INSERT INTO jobs (id, tenant, endpoint, model, lane, status, input_file_id, options, metadata, total,
  completed, failed, estimated_tokens, input_tokens, cached_tokens, output_tokens, reasoning_tokens,
  intake_token, intake_bytes, planned_key, created_ms, deadline_ms)
VALUES ('batch_1', 'local', '/v1/completions', 'sim', 'normal', 'completed', 'file-1', '{}', '{"a": "é"}', 2,
  1, 1, 1, 1, 0, 1, 0, 1, 1, 'planned/1', 1, 2);
INSERT INTO chunks (job_id, seq, "offset", length, requests, estimated_tokens, state, attempt, lease_token)
VALUES ('batch_1', 0, 0, 10, 2, 1, 'done', 1, 1);
INSERT INTO results (job_id, idx, custom_id, status_code, input_tokens, output_tokens, duration_ms,
  finished_ms, worker)
VALUES ('batch_1', 0, 'r0', 200, 1, 1, 1, 1, 'w'), ('batch_1', 1, 'r1', 400, 1, 1, 1, 1, 'w');
INSERT INTO usage (day, tenant, model, requests, failed_requests, input_tokens, output_tokens)
VALUES ('2026-01-01', 'local', 'sim', 2, 1, 1, 1);
INSERT INTO audit (at_ms, tenant, action, subject, detail)
VALUES (1, 'local', 'job.created', 'batch_1', '{}')
"""

AT_ONCE = 4


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind without a table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with postgres.new_database() as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        engine.dispose()
        yield url


def make_first_version(url: str) -> None:
    """The tables of the first version, with a finished job in them."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    config = Config()
    config.set_main_option("script_location", str(Path(tasks.__file__).parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for statement in ROWS.split(";"):
            connection.execute(text(statement.replace(":", r"\:")))
    engine.dispose()


def differences(connection: Connection) -> list[object]:
    """What alembic would change to get from the database's tables to those of the code."""
    return list(compare_metadata(MigrationContext.configure(connection), Table.metadata))


@contextmanager
def looking_at(url: str) -> Iterator[Connection]:
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_rows_of_the_first_version_survive_and_work_in_the_present_one(
    empty_url: str, sqlite_backends: Backends
) -> None:
    make_first_version(empty_url)
    with closing(Database(empty_url)) as database:
        database.migrate()
        database.migrate()
        backends = replace(sqlite_backends, database=database)
        job = get_job(database, "batch_1", "local")
        assert (job.kind, job.job_metadata, job.completed, job.failed) == ("requests", {"a": "é"}, 1, 1)
        assert [job.id for job in list_jobs(database, "local", search="in.").items] == ["batch_1"]
        assert [file.id for file in list_files(database, "local").items] == ["file-1"]
        assert rerun_job(backends, "local", "batch_1").parent_id == "batch_1"
        with database.read() as session:
            for table, rows in ((File, 1), (Job, 2), (Chunk, 1), (Result, 2)):
                assert len(session.scalars(select(table)).all()) == rows
        # Its rows still hang together: what belongs to it goes with it.
        with database.write() as session:
            session.execute(text("UPDATE jobs SET status = 'failed' WHERE parent_id = 'batch_1'"))
        delete_job(database, "batch_1", "local")
        assert purge_jobs(backends) == 1
        with database.read() as session:
            for table, rows in ((File, 1), (Job, 1), (Chunk, 0), (Result, 0)):
                assert len(session.scalars(select(table)).all()) == rows
    with looking_at(empty_url) as connection:
        assert differences(connection) == []
        assert connection.execute(text("SELECT requests FROM usage")).scalar_one() == 2
        assert connection.execute(text("SELECT count(*) FROM audit WHERE at_ms = 1")).scalar_one() == 1
        if connection.dialect.name == "sqlite":
            assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
            assert connection.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"


def test_a_fresh_database_gets_the_tables_of_the_code(database_url: str) -> None:
    with looking_at(database_url) as connection:
        assert differences(connection) == []


@pytest.mark.parametrize("begin_with", ["nothing", "first_version"])
def test_processes_that_start_together_migrate_once(empty_url: str, begin_with: str) -> None:
    if begin_with == "first_version":
        make_first_version(empty_url)
    begin = Barrier(AT_ONCE)

    def migrate() -> None:
        with closing(Database(empty_url)) as database:
            begin.wait()
            database.migrate()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(migrate) for _ in range(AT_ONCE)]:
            done.result()
    with looking_at(empty_url) as connection:
        assert differences(connection) == []
        jobs = connection.execute(text("SELECT count(*) FROM jobs")).scalar_one()
        assert jobs == (begin_with == "first_version")
