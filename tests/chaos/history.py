"""All that a mill did, for the checker: its tables, what was deleted from them, and the engines' own logs."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import text

from tasks.database import Database
from tasks.results import StoredResult, output_line
from tasks.tables import JobKind

Row = Mapping[str, Any]

REMEMBERED = ("jobs", "results")
"""Tables whose deleted rows are kept, in `gone_...`: a purged job must have been right too."""


class Call(NamedTuple):
    """A request enters an engine."""

    token: int
    """Of the lease under which it did."""
    pid: int
    at_ms: int
    """By the clock of the engine's process."""


class Recorded(NamedTuple):
    """A result as it was written."""

    result: StoredResult
    worker: str
    line: bytes
    """As the output or error file has it."""


@dataclass(frozen=True)
class History:
    """One reading of everything, after the mill has settled."""

    jobs: dict[str, Row]
    """Purged ones among them."""
    purged: frozenset[str]
    results: dict[str, list[Recorded]]
    """Job to its results in input order."""
    left_results: frozenset[str]
    """Jobs that have rows in `results` itself."""
    chunks: dict[str, list[Row]]
    progress: dict[str, list[Row]]
    tallies: dict[str, list[Row]]
    files: dict[str, Row]
    usage: list[Row]
    calls: dict[tuple[str, int], list[Call]]
    """Job and index of a request to the times it entered an engine."""


def keep_what_is_deleted(database: Database) -> None:
    """Make the database remember rows that are deleted from it."""
    with database.write() as session:
        if not database.is_sqlite:
            session.execute(
                text(
                    "CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                    " EXECUTE format('INSERT INTO gone_%s SELECT ($1).*', TG_TABLE_NAME) USING OLD;"
                    " RETURN OLD; END $$"
                )
            )
        for table in REMEMBERED:
            session.execute(text(f"CREATE TABLE gone_{table} AS SELECT * FROM {table} WHERE 1 = 0"))
            action = (
                f"BEGIN INSERT INTO gone_{table} SELECT * FROM {table} WHERE rowid = OLD.rowid; END"
                if database.is_sqlite
                else "EXECUTE FUNCTION remember()"
            )
            session.execute(
                text(f"CREATE TRIGGER remember_{table} BEFORE DELETE ON {table} FOR EACH ROW {action}")
            )


def read_history(database: Database, logs: Iterable[tuple[int, Path]]) -> History:
    """Read all of it; `logs` are those of the engine workers, with their process ids."""
    with database.read() as session:

        def rows(table: str, order: str = "1") -> list[Row]:
            return [
                dict(row)
                for row in session.execute(text(f"SELECT * FROM {table} ORDER BY {order}")).mappings()
            ]

        jobs, gone_jobs = rows("jobs"), rows("gone_jobs")
        results, gone_results = rows("results", "job_id, idx"), rows("gone_results", "job_id, idx")
        chunks = rows("chunks", "job_id, seq")
        progress, tallies = rows("progress"), rows("tallies")
        files, usage = rows("files"), rows("usage")
    # A job that is being purged may be seen half gone; that of any other no result may be missing.
    may_be_gone = {
        row["id"] for row in jobs if row["deleted_ms"] is not None or row["kind"] == JobKind.SINGLE
    }
    may_be_gone.update(row["id"] for row in gone_jobs)
    remembered = [row for row in gone_results if row["job_id"] in may_be_gone]
    return History(
        jobs={row["id"]: row for row in (*jobs, *gone_jobs)},
        purged=frozenset(row["id"] for row in gone_jobs),
        results=_recorded([*results, *remembered]),
        left_results=frozenset(row["job_id"] for row in results),
        chunks=_by_job(chunks),
        progress=_by_job(progress),
        tallies=_by_job(tallies),
        files={row["id"]: row for row in files},
        usage=usage,
        calls=_calls(logs),
    )


def _by_job(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["job_id"]].append(row)
    return found


def _recorded(rows: list[Row]) -> dict[str, list[Recorded]]:
    found: dict[str, list[Recorded]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["job_id"], row["idx"])):
        result = StoredResult(
            index=row["idx"],
            **{name: row[name] for name in StoredResult.__struct_fields__ if name != "index"},
        )
        line = output_line(row["job_id"], result)
        found[row["job_id"]].append(Recorded(result, row["worker"], line))
    return found


def _calls(logs: Iterable[tuple[int, Path]]) -> dict[tuple[str, int], list[Call]]:
    found: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for pid, path in logs:
        for line in path.read_bytes().splitlines():
            if b'"simulated_request"' not in line:
                continue
            # A process that was killed may leave half a line at the end, of a request that never entered.
            try:
                record = json.loads(line)
            except ValueError:
                continue
            job_id, index, token = str(record["request"]).rsplit("-", 2)
            at_ms = int(datetime.fromisoformat(record["timestamp"]).timestamp() * 1000)
            found[job_id, int(index)].append(Call(int(token), pid, at_ms))
    return found
