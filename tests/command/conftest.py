"""The command line as a person uses it: started as a process, watched, interrupted, killed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from tasks.database import Database
from tasks.tables import Job, Result, Worker
from tests.waiting import eventually

DEADLINE_S = 240.0
"""Reached only when something is broken."""

REQUESTS = 300
"""Requests of a run that is interrupted."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition of other processes; fails when it does not come true."""
    eventually(condition, what, longest_s=DEADLINE_S, pause_s=0.02)


@dataclass
class Commands:
    """Runs `gristmill` with settings and a data folder of its own."""

    folder: Path
    models: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    database_url: str | None = None
    """None: the SQLite file in the data folder."""

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    def command(self, *arguments: str) -> list[str]:
        """`gristmill` with these arguments."""
        return [sys.executable, "-m", "gristmill", *arguments]

    def environment_of_all(self) -> dict[str, str]:
        """The variables of every command."""
        return {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "200",
            "GRISTMILL_DATA_DIR": str(self.data_dir),
            "GRISTMILL_MODELS": json.dumps(self.models),
            "GRISTMILL_FLUSH_S": "0.1",
            **({"GRISTMILL_DATABASE_URL": self.database_url} if self.database_url else {}),
            **self.environment,
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command in a process group of its own."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment_of_all(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        """Wait for a command's end; its exit status and what it printed."""
        output, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, output

    def call(self, *arguments: str) -> tuple[int, str]:
        """Run a command to its end."""
        return self.finish(self.start(*arguments))

    def write(self, name: str, count: int, model: str, **body: Any) -> Path:
        """A file of chat requests."""
        lines = [
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "messages": [{"role": "user", "content": f"Say {number}."}],
                    **body,
                },
            }
            for number in range(count)
        ]
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def processes(self) -> list[psutil.Process]:
        """Every process that works in this folder: the command, its children, engines below them."""
        found = []
        for process in psutil.process_iter():
            # Not by environment or arguments: a process that sets its title overwrites both.
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(str(self.folder)):
                    found.append(process)
        return [process for process in found if process.pid != os.getpid()]

    def worker(self) -> psutil.Process:
        """The engine worker."""
        database = self.database()
        with database.read() as session:
            pids = session.scalars(select(Worker.pid).order_by(Worker.started_ms)).all()
        database.close()
        return psutil.Process(pids[-1])

    def database(self) -> Database:
        """The database that the commands work on."""
        return Database(self.database_url or f"sqlite:///{self.data_dir / 'gristmill.db'}")

    def finished(self) -> set[int]:
        """Indices of the requests that have a result now."""
        if self.database_url is None and not (self.data_dir / "gristmill.db").exists():
            return set()
        database = self.database()
        try:
            with database.read() as session:
                return set(session.scalars(select(Result.index)))
        except OperationalError:
            return set()  # the tables are not there yet
        finally:
            database.close()

    def jobs(self) -> list[Job]:
        """All jobs, oldest first."""
        database = self.database()
        with database.read() as session:
            jobs = list(session.scalars(select(Job).order_by(Job.created_ms)))
        database.close()
        return jobs

    def starts_in_engine(self) -> Counter[int]:
        """How often each request entered an engine, by the engine's own log."""
        log = (self.data_dir / "logs" / "engine.log").read_text()
        seen = re.findall(r"(?:Received request \S*?|request=)batch_[0-9a-f]+-(\d+)-\d+", log)
        return Counter(int(index) for index in seen)

    def kill_group(self, process: "subprocess.Popen[str]") -> None:
        """kill -9 of the command's whole process group."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def wait_for_silence(self) -> None:
        """No process of this data folder is left."""
        wait_until(lambda: not self.processes(), "the end of all processes")


SIMULATED = {
    "fast": {"source": "fast", "engine": "simulated"},
    "slow": {
        "source": "slow",
        "engine": "simulated",
        "max_in_flight": 4,
        "simulation": {"latency_s": 0.05, "log_requests": True},
    },
}


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Commands on simulated engines; nothing they started may be left at the end."""
    yield from _commands(tmp_path, None)


@pytest.fixture
def commands_on_any_database(tmp_path: Path, database_url: str) -> Iterator[Commands]:
    """The same, once on SQLite and once on PostgreSQL."""
    yield from _commands(tmp_path, database_url)


def _commands(folder: Path, database_url: str | None) -> Iterator[Commands]:
    commands = Commands(folder, SIMULATED, database_url=database_url)
    yield commands
    left = commands.processes()
    for process in left:
        process.kill()
    assert not left


def custom_ids(results: Path) -> list[str]:
    """The custom_ids of a results file, in its order."""
    return [json.loads(line)["custom_id"] for line in results.read_text().splitlines()]


def run_again(commands: Commands, file: str) -> None:
    """The same command completes the job: every custom_id once, and no finished request run again."""
    before = commands.finished()
    status, output = commands.call("run", file, "-o", "answers.jsonl")
    assert status == 0, output
    assert "Going on with" in output
    assert custom_ids(commands.folder / "answers.jsonl") == [f"r{n}" for n in range(REQUESTS)]
    assert len(commands.jobs()) == 1
    starts = commands.starts_in_engine()
    assert set(starts) == set(range(REQUESTS))
    assert {index for index in before if starts[index] > 1} == set()
