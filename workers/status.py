"""`gristmill status`: how a running mill is, seen from another terminal."""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from sqlalchemy import func, select

from config.settings import load_settings
from tasks.database import Database
from tasks.fleet import lane_depths, live_workers
from tasks.tables import FINAL_STATUSES, Job, JobKind
from workers.data_folder import holder
from workers.up_state import UpState, read_state

EXIT_OK = 0
EXIT_NOTHING_RUNS = 1


def show_status(data_dir: Path, console: Console) -> int:
    """Print addresses, processes, jobs, workers and queues; returns the exit status."""
    folder = data_dir.absolute()
    pid = holder(folder)
    if pid is None:
        console.print(f"Nothing runs in {escape(str(folder))}. Start it with `gristmill up`.")
        return EXIT_NOTHING_RUNS
    state = read_state(folder)
    if state is None or state.pid != pid:
        console.print(f"Process {pid} has {escape(str(folder))}, but it is no `gristmill up`.")
        return EXIT_NOTHING_RUNS
    _show_processes(state, folder, console)
    settings = load_settings(data_dir=folder)
    database = Database(settings.resolved_database_url())
    try:
        _show_work(database, console)
    finally:
        database.close()
    return EXIT_OK


def _show_processes(state: UpState, folder: Path, console: Console) -> None:
    console.print(f"[bold]Gristmill runs[/bold] in {escape(str(folder))}, process {state.pid}")
    rows = {
        "model": state.model,
        "pages, APIs": state.web_url,
        "Flower": state.flower_url or "not started",
        "database": state.database,
        "broker": state.broker,
    }
    for name, pid in state.processes.items():
        rows[name] = f"process {pid}" if pid is not None else "down; it is started again"
    for name, value in rows.items():
        console.print(f"  {name:<11} {escape(value)}", highlight=False, soft_wrap=True)


def _show_work(database: Database, console: Console) -> None:
    with database.read() as session:
        rows = session.execute(
            select(Job.status, func.count())
            .where(Job.kind != JobKind.SINGLE, Job.deleted_ms.is_(None))
            .group_by(Job.status)
        ).all()
    counts = Counter({row[0]: row[1] for row in rows})
    live = [f"{count} {status}" for status, count in counts.items() if status not in FINAL_STATUSES]
    ended = [f"{counts[status]} {status}" for status in sorted(FINAL_STATUSES) if counts[status]]
    console.print(f"\njobs     {', '.join(live + ended) or 'none yet'}", highlight=False)
    workers = live_workers(database)
    for worker in workers:
        console.print(f"worker   {escape(worker.id)}: {escape(worker.model)}", highlight=False)
    if not workers:
        console.print("worker   none is ready")
    for depth in lane_depths(database):
        console.print(
            f"queue    {escape(depth.model)}, {depth.lane}: {depth.pending:,} waiting, "
            f"{depth.queued:,} on the runway, {depth.leased:,} with workers",
            highlight=False,
        )
