"""A job's progress on a terminal, from the job API: a bar, or a line now and then where there is none."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tasks.durations import human_duration
from web.client import Client, ServerAway
from web.terminal import printable

POLL_S = 1.0
FIRST_POLL_S = 0.2
LINE_PERIOD_S = 5.0
"""Seconds between two lines when the output is not a terminal."""

AWAY_S = 300.0
"""A server that has been away for so long is given up."""

EXIT_ALL_SUCCEEDED = 0
EXIT_SOME_FAILED = 1
EXIT_NOT_COMPLETED = 2
EXIT_INTERRUPTED = 130
SHOWN_FAULTS = 20


def exit_status(job: dict[str, Any]) -> int:
    """How a command that waited for this job ends."""
    if job["ended_at"] is None:
        return EXIT_INTERRUPTED
    if job["status"] != "completed":
        return EXIT_NOT_COMPLETED
    return EXIT_SOME_FAILED if job["counts"]["failed"] else EXIT_ALL_SUCCEEDED


def watch_to_end(client: Client, path: str, console: Console) -> dict[str, Any]:
    """Show the job until it ends, or until Ctrl-C; answers what was last seen of it.

    Raises:
        UserError: there is no such job.
        ServerAway: the server does not come back.
    """
    job: dict[str, Any] = client.get(path)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task(job["status"], total=1, figures="")
    pause_s, said_at, seen_at = FIRST_POLL_S, float("-inf"), time.monotonic()
    try:
        with bar:
            while job["ended_at"] is None:
                share, figures = _figures(job)
                bar.update(task, description=job["status"], completed=share, figures=figures)
                if not console.is_terminal and time.monotonic() - said_at >= LINE_PERIOD_S:
                    said_at = time.monotonic()
                    console.print(f"{job['status']}: {figures}", highlight=False, soft_wrap=True)
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, POLL_S)
                try:
                    job = client.get(path)
                    seen_at = time.monotonic()
                except ServerAway:
                    if time.monotonic() - seen_at >= AWAY_S:
                        raise
                    bar.update(task, description="waiting for the server")
    except KeyboardInterrupt:
        _say(console, f"The job goes on. Watch it again: gristmill watch {job['id']}")
        return job
    _show_end(job, console)
    return job


def _figures(job: dict[str, Any]) -> tuple[float, str]:
    """The share that is done, and the figures beside the bar."""
    if job["status"] == "validating":
        return job["read_share"], f"{job['read_share']:4.0%} of the input"
    counts = job["counts"]
    parts = [f"{counts['completed'] + counts['failed']:,}/{counts['total']:,}"]
    if job["requests_per_s"]:
        parts.append(f"{job['requests_per_s']:,.1f} req/s  {job['tokens_per_s']:,.0f} tok/s")
    if job["seconds_left"]:
        parts.append(f"{human_duration(job['seconds_left'])} left")
    if counts["failed"]:
        parts.append(f"[red]{counts['failed']:,} failed[/red]")
    return job["progress"], "  ".join(parts)


def _show_end(job: dict[str, Any], console: Console) -> None:
    counts, usage = job["counts"], job["usage"]
    for fault in job["errors"][:SHOWN_FAULTS]:
        place = f"line {fault['line']}: " if fault["line"] else ""
        _say(console, f"{place}{fault['message']} ({fault['code']})")
    for code, count in job["failures"].items():
        _say(console, f"{count:,} failed with {code}")
    _say(
        console,
        f"{job['status']}: {counts['completed']:,} succeeded, {counts['failed']:,} failed, of "
        f"{counts['total']:,}; {usage['total_tokens']:,} tokens, {job['requests_per_s']:,.1f} req/s",
    )
    if counts["total"]:
        _say(console, f"Results: gristmill results {job['id']} -o results.jsonl")


def _say(console: Console, text: str) -> None:
    console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
