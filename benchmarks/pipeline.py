"""What Gristmill itself costs: the simulated engine at zero latency, from a file to results in the database.

    python benchmarks/pipeline.py --lines 10000 --lines 1000000
    python benchmarks/pipeline.py --lines 100000 --database-url postgresql+psycopg://...

For each size: intake (lines/s and MB/s of input on one core), requests/s from the first result to the last,
and the highest resident memory of every process. The engine's answers are simulated; everything else is what
`gristmill run` always does.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import psutil
from sqlalchemy import delete, func, select

from tasks.database import Database
from tasks.tables import Job, Result

SAMPLE_S = 0.1
PROMPT_WORDS = 70
LONGEST_RUN_S = 1800


@dataclass(frozen=True)
class Measurement:
    """Figures of one size."""

    lines: int
    input_mb: float
    intake_s: float
    run_s: float
    whole_s: float
    peak_mib: dict[str, float]


@click.command()
@click.option("--lines", "sizes", type=int, multiple=True, default=(10_000, 100_000), show_default=True)
@click.option("--database-url", help="Default: SQLite in a temporary folder.")
def main(sizes: tuple[int, ...], database_url: str | None) -> None:
    """Measure the pipeline at each number of lines and compare memory with the smallest."""
    measurements = []
    for lines in sorted(sizes):
        with TemporaryDirectory(prefix="gristmill-bench-") as folder:
            measurement = measure(Path(folder), lines, database_url)
        measurements.append(measurement)
        print_measurement(measurement, measurements[0])


def measure(folder: Path, lines: int, database_url: str | None) -> Measurement:
    """Run one size in a folder of its own."""
    file = folder / "input.jsonl"
    write_input(file, lines)
    (folder / "gristmill.toml").write_text(
        'log_format = "json"\n[models.simulated]\nsource = "simulated"\nengine = "simulated"\n'
    )
    environment = {**os.environ, "GRISTMILL_CONFIG": str(folder / "gristmill.toml")}
    url = database_url or f"sqlite:///{folder / 'data' / 'gristmill.db'}"
    environment["GRISTMILL_DATABASE_URL"] = url
    command = [sys.executable, "-m", "gristmill", "run", str(file), "--data-dir", str(folder / "data")]
    started = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        peak_mib = sample_memory(process)
    whole_s = time.monotonic() - started
    if process.returncode != 0:
        sys.exit(f"gristmill run ended with status {process.returncode}")
    planned = find_record(folder / "data" / "logs" / "system.log", "job_planned")
    database = Database(url)
    with database.write() as session:
        job_id = str(planned["job"])
        first, last, count = session.execute(
            select(func.min(Result.finished_ms), func.max(Result.finished_ms), func.count()).where(
                Result.job_id == job_id
            )
        ).one()
        session.execute(delete(Result).where(Result.job_id == job_id))
        session.execute(delete(Job).where(Job.id == job_id))
    database.close()
    assert count == lines
    return Measurement(
        lines=lines,
        input_mb=file.stat().st_size / 1e6,
        intake_s=float(str(planned["seconds"])),
        run_s=max(0.001, (last - first) / 1000),
        whole_s=whole_s,
        peak_mib=peak_mib,
    )


def write_input(file: Path, lines: int) -> None:
    """Chat requests of some 600 bytes."""
    chance = random.Random(0)
    words = [
        "grain",
        "mill",
        "stone",
        "flour",
        "water",
        "wheel",
        "sack",
        "miller",
        "bread",
        "wind",
        "sail",
        "river",
    ]
    with file.open("w") as opened:
        for number in range(lines):
            content = " ".join(chance.choices(words, k=PROMPT_WORDS))
            body = {
                "model": "simulated",
                "max_tokens": 64,
                "messages": [{"role": "user", "content": content}],
            }
            line = {
                "custom_id": f"request-{number:08d}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            opened.write(json.dumps(line) + "\n")


def sample_memory(process: "subprocess.Popen[bytes]") -> dict[str, float]:
    """The highest resident memory, in MiB, of the command and of each child, until the command ends."""
    peaks: dict[str, float] = defaultdict(float)
    own = psutil.Process(process.pid)
    deadline = time.monotonic() + LONGEST_RUN_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            sys.exit(f"not finished after {LONGEST_RUN_S} s")
        try:
            for each in [own, *own.children(recursive=True)]:
                name = process_name(each.cmdline())
                peaks[name] = max(peaks[name], each.memory_info().rss / 2**20)
        except psutil.Error:
            pass
        time.sleep(SAMPLE_S)
    return dict(peaks)


def process_name(arguments: list[str]) -> str:
    """Which of Gristmill's processes this is."""
    if arguments and Path(arguments[0]).name in ("valkey-server", "redis-server"):
        return "redis"
    return next((word for word in ("system", "worker") if word in arguments), "run")


def find_record(log: Path, action: str) -> dict[str, object]:
    """The first log record with this action."""
    for line in log.read_text().splitlines():
        if line.startswith("{"):
            record: dict[str, object] = json.loads(line)
            if record.get("event") == action:
                return record
    sys.exit(f"{log} has no {action}")


def print_measurement(now: Measurement, smallest: Measurement) -> None:
    """One block of figures."""
    print(f"{now.lines:,} lines, {now.input_mb:,.1f} MB")
    print(
        f"  intake    {now.lines / now.intake_s:10,.0f} lines/s  {now.input_mb / now.intake_s:7,.0f} MB/s"
        f"  ({now.intake_s:.2f} s)"
    )
    print(f"  pipeline  {now.lines / now.run_s:10,.0f} requests/s  ({now.run_s:.2f} s)")
    print(f"  command   {now.whole_s:10,.1f} s, start-up and export included")
    for name, peak in sorted(now.peak_mib.items()):
        ratio = peak / smallest.peak_mib.get(name, peak)
        print(f"  memory    {peak:10,.0f} MiB {name}  ({ratio:.2f}x of {smallest.lines:,} lines)")


if __name__ == "__main__":
    main()
