"""`gristmill run`: one file of prompts through an engine, to the end."""

import hashlib
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as ConsoleTable
from sqlalchemy import select

from config.settings import Settings, load_settings
from tasks.app import use_settings
from tasks.backends import Backends
from tasks.durations import human_duration
from tasks.export import check_destination, export_results
from tasks.file_sink import store_file
from tasks.fleet import live_workers
from tasks.jobs import get_job
from tasks.results import answer_text, error_message, iter_results
from tasks.submission import JobRequest, create_job, find_resumable, mark_delivered
from tasks.system import announce
from tasks.tables import FINAL_STATUSES, File, Job, JobStatus
from tasks.validation import first_named_model
from workers.data_folder import DataFolder
from workers.local_mill import EngineKeepsFailing, LocalMill
from workers.model_choice import must_be_usable, usable_default, with_model
from workers.progress import RunProgress

EXIT_OK = 0
EXIT_SOME_FAILED = 1
EXIT_JOB_FAILED = 2
EXIT_INTERRUPTED = 130

POLL_S = 0.25
READ_BYTES = 1 << 20
SHOWN_RESULTS = 3
SHOWN_FAULTS = 20
SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class RunRequest:
    """What the command line asks for."""

    file: Path
    output: Path
    model: str | None
    endpoint: str
    data_dir: Path


def run_file(request: RunRequest, console: Console) -> int:
    """Run a file to the end and write its results; returns the exit status.

    An interrupted run is taken up again by the same command: finished requests are not run twice.

    Raises:
        UserError: the file, the model or the output cannot be used.
    """
    check_destination(request.output)
    settings, model, environment = _settle_model(request, console)
    with DataFolder(request.data_dir) as folder:
        backends = Backends.open(settings)
        backends.database.migrate()
        started = time.monotonic()
        job = _find_or_create(backends, request, model, console)
        try:
            job = _run_to_end(backends, settings, folder, environment, job, console)
        except KeyboardInterrupt:
            console.print("Interrupted. What is finished is kept: run the same command again to go on.")
            return EXIT_INTERRUPTED
        except EngineKeepsFailing as error:
            console.print("[red]The engine does not start or keeps dying.[/red] The end of its log:\n")
            console.print(escape(str(error)))
            console.print(f"\nThe whole log: {folder.logs / 'engine.log'}. Run the same command to go on.")
            return EXIT_JOB_FAILED
        return _deliver(backends, job, request, time.monotonic() - started, console)


def _settle_model(request: RunRequest, console: Console) -> tuple[Settings, str | None, dict[str, str]]:
    """The settings of this run, the job's model, and the environment that tells the children the same."""
    environment = {"GRISTMILL_DATA_DIR": str(request.data_dir.absolute())}
    settings = load_settings(data_dir=request.data_dir.absolute())
    model = request.model
    if model is not None:
        settings, variables = with_model(settings, model)
        environment |= variables
    chosen = model or _named_in_file(request.file, settings)
    if chosen is None:
        model = usable_default(settings, lambda message: _warn(console, message))
    else:
        must_be_usable(settings, chosen)
    return settings, model, environment


def _warn(console: Console, message: str) -> None:
    console.print(f"[yellow]{escape(message)}[/yellow]")


def _named_in_file(file: Path, settings: Settings) -> str | None:
    return first_named_model(_blocks(file), settings.max_line_bytes)


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while block := opened.read(READ_BYTES):
            yield block


def _find_or_create(backends: Backends, request: RunRequest, model: str | None, console: Console) -> Job:
    key = _resume_key(request, model)
    job = find_resumable(backends.database, key)
    if job is not None:
        done = job.completed + job.failed
        console.print(f"Going on with {job.id}: {done:,} of {job.total:,} requests are finished.")
        return job
    file = store_file(backends, _blocks(request.file), filename=request.file.name)
    job = create_job(
        backends,
        JobRequest(endpoint=request.endpoint, input_file_id=file.id, model=model, resume_key=key),
    )
    console.print(f"{job.id}: {request.file} ({file.bytes / 1e6:,.1f} MB)")
    return job


def _resume_key(request: RunRequest, model: str | None) -> str:
    """The same for the same work: what is in the file, and what is asked of it."""
    digest = hashlib.sha256()
    for block in _blocks(request.file):
        digest.update(block)
    return f"run:{digest.hexdigest()}:{request.endpoint}:{model}"


def _run_to_end(
    backends: Backends,
    settings: Settings,
    folder: DataFolder,
    environment: dict[str, str],
    job: Job,
    console: Console,
) -> Job:
    if job.status in FINAL_STATUSES:
        return job

    def say(message: str) -> None:
        _warn(console, message)

    with LocalMill(settings, folder, environment, say) as mill, _interruptible(settings, console):
        use_settings(mill.settings)
        announce(job.id)
        with RunProgress(console, _input_bytes(backends, job)) as progress:
            engine_started = False
            while True:
                job = get_job(backends.database, job.id)
                if job.status in FINAL_STATUSES:
                    return job
                if job.status == JobStatus.IN_PROGRESS and not engine_started:
                    assert job.model is not None
                    mill.start_engine(job.model)
                    engine_started = True
                progress.show(job, engine_ready=bool(live_workers(backends.database, job.model)))
                mill.keep_running(job.completed + job.failed)
                time.sleep(POLL_S)


@contextmanager
def _interruptible(settings: Settings, console: Console) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block; the person is told why the end takes a moment."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        console.print(
            f"\nStopping: the engine finishes what it holds, for at most {settings.drain_s:.0f} s. "
            "Ctrl-C again stops at once."
        )
        raise


def _input_bytes(backends: Backends, job: Job) -> int:
    with backends.database.read() as session:
        return session.execute(select(File.bytes).where(File.id == job.input_file_id)).scalar_one()


def _deliver(backends: Backends, job: Job, request: RunRequest, seconds: float, console: Console) -> int:
    if job.status == JobStatus.FAILED:
        _show_faults(job, console)
        mark_delivered(backends.database, job.id)
        return EXIT_JOB_FAILED
    export_results(backends, job, request.output)
    mark_delivered(backends.database, job.id)
    _show_some(backends, job, console)
    done = job.completed + job.failed
    tokens = job.input_tokens + job.output_tokens
    console.print(
        f"\n{job.status}: {job.completed:,} succeeded, {job.failed:,} failed, of {job.total:,}; "
        f"{tokens:,} tokens in {human_duration(seconds)} ({done / max(seconds, 0.001):,.1f} req/s, start-up "
        f"included)\n{done:,} results in input order: [bold]{escape(str(request.output))}[/bold]",
        highlight=False,
    )
    if job.status != JobStatus.COMPLETED:
        return EXIT_JOB_FAILED
    return EXIT_SOME_FAILED if job.failed else EXIT_OK


def _show_faults(job: Job, console: Console) -> None:
    faults = job.errors or []
    console.print(f"[red]The file was refused; nothing was run.[/red] {len(faults)} faults:")
    table = ConsoleTable("line", "code", "what is wrong")
    for fault in faults[:SHOWN_FAULTS]:
        table.add_row(str(fault["line"] or ""), fault["code"], escape(fault["message"]))
    console.print(table)
    if len(faults) > SHOWN_FAULTS:
        console.print(f"and {len(faults) - SHOWN_FAULTS} more")


def _show_some(backends: Backends, job: Job, console: Console) -> None:
    for number, result in enumerate(iter_results(backends.database, job.id)):
        if number == SHOWN_RESULTS:
            break
        text = error_message(result) or answer_text(result) or (result.body or b"").decode()
        shown = " ".join(text.split())[:SHOWN_CHARACTERS]
        console.print(f"  {escape(result.custom_id)}: {escape(shown)!r}", highlight=False)
