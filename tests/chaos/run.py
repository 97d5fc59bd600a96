"""One chaos run: a mill, its load, the faults, the wait until it has settled, and the verdict."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from tasks.tables import FINAL_STATUSES, Chunk, ChunkState, Job, Result
from tests.chaos.databases import database_under_test
from tests.chaos.history import read_history
from tests.chaos.invariants import Evidence, violations
from tests.chaos.load import Load
from tests.chaos.mill import Mill
from tests.chaos.object_store import FOLDER, object_store_under_test
from tests.chaos.outputs import wrong_outputs
from tests.chaos.schedule import Planned, carry_out, plan

SETTLE_S = 120.0
"""How long everything may take to come to its end after the last fault."""


@dataclass(frozen=True)
class Report:
    """What a run did, and what was wrong."""

    seed: int
    database: str
    object_store: str
    seconds: float
    faults: Counter[str]
    statuses: Counter[str]
    """Jobs by their final state."""
    answers: Counter[str]
    """Attempts to submit by their answer."""
    endings: Counter[str]
    """Requests by their result."""
    calls: int
    settled_s: float
    own_ends: list[str]
    """Processes that ended without a fault done to them: a supervisor mends it, but somebody should look."""
    violations: list[str]

    def __str__(self) -> str:
        def counted(counter: Counter[str]) -> str:
            return ", ".join(f"{count} {name}" for name, count in sorted(counter.items())) or "none"

        lines = [
            f"chaos on {self.database} and {self.object_store}, seed {self.seed}, {self.seconds:g} s; "
            f"settled after another {self.settled_s:.1f} s",
            f"  faults: {sum(self.faults.values())}: {counted(self.faults)}",
            f"  submissions answered: {counted(self.answers)}",
            f"  jobs: {counted(self.statuses)}",
            f"  requests: {self.endings.total()}: {counted(self.endings)}",
            f"  engine calls: {self.calls}",
            *(f"  note: {end}" for end in self.own_ends),
            f"  violations: {len(self.violations) or 'none'}",
            *(f"    {violation}" for violation in self.violations),
        ]
        return "\n".join(lines)


def run_chaos(
    folder: Path,
    *,
    database: str,
    seed: int,
    seconds: float,
    object_store: str = FOLDER,
    planned: list[Planned] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Do the faults of this seed, or those that are planned, to a mill under load; check everything after."""
    if planned is None:
        planned = plan(seed, seconds, {database, object_store})
    found: list[str] = []
    with contextlib.ExitStack() as stack:
        mill = Mill(
            folder,
            stack.enter_context(database_under_test(database, folder)),
            stack.enter_context(object_store_under_test(object_store)),
        )
        stack.callback(lambda: found.extend(mill.stop()))
        mill.start()
        key = mill.new_key()
        load = Load(mill.url, key, seed)
        stack.callback(load.close)
        load.start()
        faults = carry_out(planned, mill, seconds, lambda at_s: tell(f"{at_s:6.0f} s  {_state(mill, load)}"))
        load.end()
        began = time.monotonic()
        while not (settled := load.is_done and is_settled(mill)):
            if time.monotonic() - began > SETTLE_S:
                break
            time.sleep(0.5)
            tell(f"settling {time.monotonic() - began:4.0f} s  {_state(mill, load)}")
        settled_s = time.monotonic() - began
        load.close()
        # Of a mill that works: its files are read through its own doors.
        mill.wait_until_ready()
        evidence = Evidence(load.submissions, read_history(mill.backends.database, mill.engine_logs()))
        found += [*violations(evidence), *wrong_outputs(mill.url, key, evidence.history)]
    if not settled:
        found.insert(0, f"it has not settled within {SETTLE_S:g} s")
    return Report(
        seed=seed,
        database=database,
        object_store=object_store,
        seconds=seconds,
        faults=faults,
        statuses=Counter(row["status"] for row in evidence.history.jobs.values()),
        answers=Counter(
            " ".join(str(part) for part in (answer.status, answer.code) if part is not None)
            for submission in load.submissions
            for answer in submission.answers
        ),
        endings=Counter(
            each.result.error_code or str(each.result.status_code)
            for results in evidence.history.results.values()
            for each in results
        ),
        calls=sum(len(calls) for calls in evidence.history.calls.values()),
        settled_s=settled_s,
        own_ends=[end for part in mill.parts.values() for end in part.own_ends],
        violations=found,
    )


def is_settled(mill: Mill) -> bool:
    """Nothing is left to do: all jobs ended, deleted ones are gone, and no lease is left to run out."""
    try:
        with mill.backends.database.read() as session:
            open_jobs = select(Job.id).where(Job.status.not_in(FINAL_STATUSES) | Job.deleted_ms.is_not(None))
            held = select(Chunk.seq).where(Chunk.state == ChunkState.LEASED)
            return (
                not session.execute(open_jobs.limit(1)).first() and not session.execute(held.limit(1)).first()
            )
    except SQLAlchemyError:
        return False


def _state(mill: Mill, load: Load) -> str:
    with contextlib.suppress(SQLAlchemyError), mill.backends.database.read() as session:
        jobs = session.execute(
            select(Job.status, func.count()).group_by(Job.status).order_by(Job.status)
        ).all()
        results = session.execute(select(func.count()).select_from(Result)).scalar_one()
        running = sum(part.is_running for part in mill.parts.values())
        shown = ", ".join(f"{count} {status}" for status, count in jobs)
        return f"{running} of 5 processes, {len(load.submissions)} submissions, {shown}, {results} results"
    return "the database does not answer"
