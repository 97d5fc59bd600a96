"""Migrations: from the first version with its rows, and to exactly the tables of the code."""

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

import tasks
from tasks.database import Database
from tasks.tables import Table
from tests.postgresql import PostgresServer

ROWS = """
INSERT INTO files (id, tenant, purpose, filename, bytes, sha256, storage_key, created_ms)
VALUES ('file-1', 'local', 'batch', 'in.jsonl', 1, 'x', 'files/1', 1);
INSERT INTO jobs (id, tenant, endpoint, model, lane, status, input_file_id, options, total, completed, failed,
  estimated_tokens, input_tokens, cached_tokens, output_tokens, reasoning_tokens, intake_token, intake_bytes,
  created_ms, deadline_ms)
VALUES ('batch_1', 'local', '/v1/completions', 'm', 'normal', 'completed', 'file-1', '{}', 1, 1, 0,
  1, 1, 0, 1, 0, 1, 1, 1, 2);
INSERT INTO results (job_id, idx, custom_id, status_code, input_tokens, output_tokens, duration_ms,
  finished_ms, worker)
VALUES ('batch_1', 0, 'r0', 200, 1, 1, 1, 1, 'w')
"""


def test_rows_of_the_first_version_survive_to_the_present_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    engine = create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(Path(tasks.__file__).parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for statement in ROWS.split(";"):
            connection.execute(text(statement))
    database = Database(url)
    database.migrate()
    database.migrate()
    database.close()
    with engine.connect() as connection:
        for table in ("files", "jobs", "results"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 1
        assert connection.execute(text("SELECT kind FROM jobs")).scalar_one() == "requests"
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
        assert compare_metadata(MigrationContext.configure(connection), Table.metadata) == []
    engine.dispose()


def test_postgresql_gets_the_tables_of_the_code(postgres: PostgresServer) -> None:
    with postgres.new_database() as url:
        engine = create_engine(url)
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), Table.metadata) == []
        engine.dispose()
