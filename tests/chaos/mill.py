"""A whole mill under test: every part a process that is started again when it dies, as in a deployment."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy.exc import SQLAlchemyError

from config.settings import Settings, load_settings
from tasks.backends import Backends
from tasks.failpoints import FAILPOINT_VARIABLE, Failpoint
from tasks.fleet import live_workers
from tasks.keys import create_key
from tasks.tables import Role
from tests.chaos.clock import clock_environment
from tests.chaos.databases import DatabaseUnderTest
from tests.chaos.object_store import S3UnderTest
from tests.waiting import eventually
from workers.embedded_redis import EmbeddedRedis
from workers.orphan_guard import PARENT_VARIABLE

MODEL = "sim"

SETTINGS: dict[str, Any] = {
    "models": {
        MODEL: {
            "source": MODEL,
            "engine": "simulated",
            "max_in_flight": 8,
            "simulation": {"latency_s": 0.08, "log_requests": True},
        }
    },
    "default_model": MODEL,
    "chunk_requests": 32,
    # Short, so that a run sees many leases expire.
    "lease_s": 3.0,
    "drain_s": 2.0,
    "flush_s": 0.2,
    "tick_s": 0.5,
    "web_processes": 1,
    "sync_timeout_s": 15.0,
    "log_format": "json",
}

PARTS: dict[str, tuple[str, ...]] = {
    "web": ("web",),
    "system-1": ("system",),
    "system-2": ("system",),
    "engine-1": ("worker", MODEL),
    "engine-2": ("worker", MODEL),
}
"""Name to the arguments of `gristmill`."""

RESTART_PAUSE_S = 0.3
"""Between a death and the next start: shorter than a second, as a supervisor would do it."""


class Part:
    """One process, and those that were it before."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.clock_offset_s = 0
        """How wrong the clock of the next process is."""
        self.starts = 0
        self.logs: dict[int, list[Path]] = {}
        """Process id to the logs of the processes that had it."""
        self.own_ends: list[str] = []
        """How processes ended to which no fault had been done."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._was_hit = False

    def start(self, environment: dict[str, str]) -> None:
        """Start it, in a process group of its own, with a log of its own."""
        self.starts += 1
        self._was_hit = False
        log_file = self._folder / "logs" / f"{self.name}.{self.starts}.log"
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gristmill", *PARTS[self.name]],
                cwd=self._folder,
                env={**environment, **clock_environment(self.clock_offset_s)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.logs.setdefault(self._process.pid, []).append(log_file)

    @property
    def is_running(self) -> bool:
        """Whether the process itself, not what it started, is there."""
        return self._process is not None and self._process.poll() is None

    def send(self, sent: signal.Signals, *, to_group: bool = False) -> None:
        """Send a signal to the process, or to all of its group; a process that is gone gets none."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self._was_hit = True
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if to_group else os.kill)(process.pid, sent)

    def freeze(self, seconds: float) -> None:
        """Stop its group for a while; the same processes go on, whatever was killed or started meanwhile."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self._was_hit = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGSTOP)
            try:
                time.sleep(seconds)
            finally:
                # A child that stays behind frozen would hold its locks for ever.
                os.killpg(process.pid, signal.SIGCONT)

    def pids(self) -> list[int]:
        """Of the process and of what it started."""
        if self._process is None:
            return []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._process.pid).children(recursive=True)
            return [self._process.pid, *(child.pid for child in children)]
        return []

    def kill_child(self) -> None:
        """Kill what the process started, which is the web server's process that answers."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()

    def note_end(self) -> None:
        """Remember how it ended, unless a fault ended it."""
        if self._process is not None and not self._was_hit:
            log = self.logs[self._process.pid][-1]
            status = self._process.returncode
            self.own_ends.append(f"{log.name} ended by itself with status {status}: {_last_words(log)}")

    def stop(self, grace_s: float) -> None:
        """SIGTERM and some patience."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Mill:
    """Web server, two system workers, two engine workers, Redis, a database."""

    def __init__(
        self,
        folder: Path,
        database: DatabaseUnderTest,
        object_store: S3UnderTest | None = None,
        **changed: Any,
    ) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir()
        self._failpoints = folder / "failpoints"
        self._failpoints.mkdir()
        self.database = database
        self.object_store = object_store
        """Null: a folder beside the database."""
        # As in `gristmill up`, where it shares the fate of the data folder's disk.
        self.redis = EmbeddedRedis(folder / "data" / "redis")
        values = {
            **SETTINGS,
            **changed,
            "data_dir": str(folder / "data"),
            "database_url": database.url,
            "redis_url": self.redis.url,
            "web_port": _free_port(),
            **(object_store.settings if object_store else {}),
        }
        self.settings: Settings = load_settings(**values)
        self.backends = Backends.open(self.settings)
        self.url = f"http://{self.settings.web_host}:{self.settings.web_port}"
        self.parts = {name: Part(name, folder) for name in PARTS}
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GRISTMILL_")},
            **{
                f"GRISTMILL_{name.upper()}": json.dumps(value) if isinstance(value, dict) else str(value)
                for name, value in values.items()
            },
            # Nothing of it outlives the harness, whatever that dies of.
            PARENT_VARIABLE: str(os.getpid()),
            FAILPOINT_VARIABLE: str(self._failpoints),
        }
        self._stopping = threading.Event()
        self._redis_may_start_at = 0.0
        self._keeper = threading.Thread(target=self._keep_all, name="keeper")

    def start(self) -> None:
        """Start all of it, and return when it can work."""
        self._keeper.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return when everything runs and answers."""
        # Seldom: asking takes time from the processes that start.
        eventually(self.is_ready, "the mill", longest_s=120, pause_s=0.2)

    def is_ready(self) -> bool:
        """Whether the web server answers and both engine workers live."""
        try:
            answers = httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200
            return answers and len(live_workers(self.backends.database)) >= 2
        except (httpx.TransportError, SQLAlchemyError):
            return False

    def engine_logs(self) -> list[tuple[int, Path]]:
        """All logs of engine workers, with their process ids."""
        engines = (part for part in self.parts.values() if PARTS[part.name][0] == "worker")
        return [(pid, log) for part in engines for pid, logs in part.logs.items() for log in logs]

    def new_key(self) -> str:
        """The secret of a new API key."""
        return create_key(self.backends.database, tenant="local", name="chaos", role=Role.ADMIN).secret

    def arm(self, place: Failpoint) -> None:
        """Let the first process that comes to this place die there."""
        (self._failpoints / place).touch()

    def has_died_at(self, place: Failpoint) -> bool:
        """Whether a process came to the place since it was armed."""
        return not (self._failpoints / place).exists()

    def kill_redis(self, pause_s: float) -> None:
        """Kill Redis; it comes back with its data after the pause."""
        self._redis_may_start_at = time.monotonic() + pause_s
        if self.redis.child is not None:
            self.redis.child.stop(grace_s=0)

    def stop(self) -> list[str]:
        """Stop everything; what was left over, in words."""
        self._stopping.set()
        self._keeper.join()
        self.backends.database.close()
        return list(self._left_over())

    def _left_over(self) -> Iterator[str]:
        # By folder, not by group: what left its group is the orphan to be found.
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.cwd().startswith(str(self.folder)) and process.pid != os.getpid()
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    yield f"process {process.pid} is left: {' '.join(process.cmdline())}"
                    process.kill()

    def _keep_all(self) -> None:
        # One thread for all of it: the kernel ends Redis together with the thread that started it.
        while not self._stopping.is_set():
            if not self.redis.is_running and time.monotonic() > self._redis_may_start_at:
                self.redis.start(self.folder / "logs" / "redis.log")
            for part in self.parts.values():
                if not part.is_running:
                    part.note_end()
                    part.start(self._environment)
            self._stopping.wait(RESTART_PAUSE_S)
        for part in self.parts.values():
            part.send(signal.SIGCONT, to_group=True)
            part.send(signal.SIGTERM)
        for part in self.parts.values():
            part.stop(grace_s=20)
        self.redis.stop()


def _last_words(log: Path) -> str:
    """The last severe record of a log, or else its last line."""
    lines = log.read_text(errors="replace").splitlines()
    severe = [line for line in lines if '"level": "critical"' in line]
    return (severe or lines or ["nothing"])[-1][:200]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
