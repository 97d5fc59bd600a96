"""What the client commands do: they hand over, list, watch, fetch and stop jobs."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tasks.durations import human_duration
from tasks.errors import UserError
from web.client import Client
from web.terminal import printable
from web.watching import exit_status, watch_to_end

EXIT_OK = 0
EXIT_FAULTS = 1
SHOWN_CHARACTERS = 300
SHOWN_FAULTS = 20
ID_CHARACTERS = 30
JOB_COLUMNS = ("status", "model", "done", "failed", "left", "created", "file")
PIPED_CHARACTERS = 200
"""Width of a list that no person looks at: nothing is folded."""
FORMATS = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}


def submit_file(client: Client, file: Path, options: dict[str, Any], *, as_json: bool, watch: bool) -> int:
    """Make a job of a file; the exit status."""
    job = client.send_file("/api/jobs", options, file)
    return _follow(client, job, f"{job['id']}: {file.name}", as_json=as_json, watch=watch)


def rerun_job(client: Client, job_id: str, changed: dict[str, Any], *, as_json: bool, watch: bool) -> int:
    """Make a job of what did not succeed in another; the exit status."""
    job = client.post(f"{_path(job_id)}/rerun", changed)
    return _follow(client, job, f"{job['id']}: runs {job_id} again", as_json=as_json, watch=watch)


def _follow(client: Client, job: dict[str, Any], said: str, *, as_json: bool, watch: bool) -> int:
    if watch:
        Console(stderr=True).print(printable(said), highlight=False, markup=False)
        return watch_job(client, job["id"], as_json=as_json)
    if as_json:
        _print_json(job)
    else:
        _print(said)
        _print(f"Watch it: gristmill watch {job['id']}")
    return EXIT_OK


def check_file(client: Client, file: Path, options: dict[str, Any], *, as_json: bool) -> int:
    """Show what a file would become; the exit status says whether it can run."""
    report = client.send_file("/api/jobs/validate", options, file)
    if as_json:
        _print_json(report)
    elif report["valid"]:
        _show_plan(report)
    else:
        _show_faults(report)
    return EXIT_OK if report["valid"] else EXIT_FAULTS


def _show_plan(report: dict[str, Any]) -> None:
    for sample in report["samples"]:
        prompt = sample["prompt"] if sample["prompt"] is not None else json.dumps(sample["body"])
        _print(f"--- {sample['custom_id']}")
        _print(prompt if len(prompt) <= SHOWN_CHARACTERS else f"{prompt[:SHOWN_CHARACTERS]}...")
    expected = report["expected_s"]
    duration = "unknown, the model never ran" if expected is None else f"about {human_duration(expected)}"
    _print(
        f"\n{report['requests']:,} requests for {report['model']}, at most {report['estimated_tokens']:,} "
        f"tokens; expected time: {duration}. Nothing was started."
    )


def _show_faults(report: dict[str, Any]) -> None:
    table = Table("line", "code", "what is wrong")
    for fault in report["errors"][:SHOWN_FAULTS]:
        table.add_row(str(fault["line"] or ""), fault["code"], escape(printable(fault["message"])))
    Console().print(table)
    count = report["error_count"]
    _print(f"{count:,} {'fault' if count == 1 else 'faults'}. Nothing was started.")


def list_jobs(client: Client, query: dict[str, Any], *, as_json: bool) -> None:
    """Show jobs, newest first."""
    page = client.get("/api/jobs", **query)
    if as_json:
        _print_json(page)
        return
    table = Table(Column("job", no_wrap=True, min_width=ID_CHARACTERS), *JOB_COLUMNS, box=None)
    for job in page["data"]:
        counts, left, file = job["counts"], job["seconds_left"], job["input_file"]
        cells = (
            job["id"],
            job["status"],
            job["model"] or "",
            f"{counts['completed'] + counts['failed']:,}/{counts['total']:,}",
            f"{counts['failed']:,}",
            human_duration(left) if left else "",
            job["created_at"][:16].replace("T", " "),
            file["filename"] if file else "",
        )
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, PIPED_CHARACTERS)
    console.print(table)


def watch_job(client: Client, job_id: str, *, as_json: bool) -> int:
    """Show a job's progress until it ends; the exit status says how."""
    job = watch_to_end(client, _path(job_id), Console(stderr=as_json))
    if as_json:
        _print_json(job)
    return exit_status(job)


def cancel_job(client: Client, job_id: str, *, as_json: bool) -> None:
    """Stop a job."""
    job = client.post(f"{_path(job_id)}/cancel", repeat=True)
    if as_json:
        _print_json(job)
    else:
        counts = job["counts"]
        _print(f"{job['id']}: {job['status']}; {counts['completed']:,} of {counts['total']:,} had succeeded.")


def save_results(client: Client, job_id: str, output: Path | None, which: str, *, as_json: bool) -> None:
    """Download a job's results. The file appears whole or not at all.

    Raises:
        UserError: the ending names no known format, or the place cannot be written.
    """
    address = f"{_path(job_id)}/results/download"
    if output is None:
        client.save(address, {"format": "jsonl", "which": which}, _to_standard_output)
        return
    kind = FORMATS.get(output.suffix.lower())
    if kind is None:
        raise UserError(f"cannot tell the format of {output.name!r}: use one of {', '.join(FORMATS)}")

    def take(blocks: Iterator[bytes], complete: bool) -> bool:
        _to_file(blocks, output)
        return complete

    complete = client.save(address, {"format": kind, "which": which}, take)
    if as_json:
        _print_json({"output": str(output), "complete": complete})
        return
    _print(f"{output}: {output.stat().st_size:,} bytes")
    if not complete:
        _print("The job still runs: this is what was finished so far.")


def _to_file(blocks: Iterator[bytes], path: Path) -> None:
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for block in blocks:
                file.write(block)
        partial.replace(path)
    except OSError as error:
        raise UserError(f"the results cannot be written to {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _to_standard_output(blocks: Iterator[bytes], complete: bool) -> None:
    try:
        for block in blocks:
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Whoever read has enough; Python must not fail at the flush of its end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if not complete:
        sys.stderr.write("The job still runs: this is what was finished so far.\n")


def _path(job_id: str) -> str:
    if not job_id.isidentifier():
        raise UserError(f"No such job: {job_id!r}.")
    return f"/api/jobs/{job_id}"


def _print(text: str) -> None:
    Console(soft_wrap=True).print(printable(text), highlight=False, markup=False)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
