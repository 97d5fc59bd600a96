"""The live display of `gristmill run`: a bar on a terminal, a line now and then elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tasks.durations import human_duration
from tasks.tables import Job, JobStatus

LINE_PERIOD_S = 5.0
"""Seconds between two lines when the output is not a terminal."""

RATE_WINDOW_S = 20.0
"""Rates are those of the last seconds: what counts for the time left."""


class RunProgress:
    """Shows one job from validation to its end."""

    def __init__(self, console: Console, input_bytes: int) -> None:
        self._console = console
        self._input_bytes = max(1, input_bytes)
        self._samples: list[tuple[float, int, int]] = []
        self._printed = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=1, figures="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, job: Job, *, engine_ready: bool) -> None:
        """Update the display."""
        done = job.completed + job.failed
        if job.status == JobStatus.VALIDATING:
            share = min(1.0, job.intake_bytes / self._input_bytes)
            self._show("validating", share, f"{share:4.0%} of {self._input_bytes / 1e6:,.1f} MB")
        elif not engine_ready and done < job.total:
            self._show("starting engine", done / max(1, job.total), f"{done:,}/{job.total:,}")
        else:
            figures = f"{done:,}/{job.total:,}  {self._rates(job, done)}"
            if job.failed:
                figures += f"  [red]{job.failed:,} failed[/red]"
            self._show("running", done / max(1, job.total), figures)

    def _show(self, what: str, share: float, figures: str) -> None:
        self._bar.update(self._task, description=what, completed=share, figures=figures)
        if not self._console.is_terminal and time.monotonic() - self._printed >= LINE_PERIOD_S:
            self._printed = time.monotonic()
            self._console.print(f"{what}: {figures}")

    def _rates(self, job: Job, done: int) -> str:
        now = time.monotonic()
        self._samples.append((now, done, job.input_tokens + job.output_tokens))
        while len(self._samples) > 2 and now - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.pop(0)
        then, done_then, tokens_then = self._samples[0]
        if now - then < 1 or done == done_then:
            return ""
        rate = (done - done_then) / (now - then)
        tokens = (job.input_tokens + job.output_tokens - tokens_then) / (now - then)
        return f"{rate:,.1f} req/s  {tokens:,.0f} tok/s  {human_duration((job.total - done) / rate)} left"
