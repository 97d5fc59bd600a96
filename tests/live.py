"""A whole Gristmill as real processes, for tests that go through its doors."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from config.settings import Settings, load_settings
from tasks.backends import Backends
from tasks.fleet import live_workers
from tasks.keys import create_key
from tasks.tables import Role
from tests.waiting import eventually
from workers.embedded_redis import EmbeddedRedis

MODELS: dict[str, Any] = {
    "fast": {"source": "fast", "engine": "simulated"},
    "slow": {
        "source": "slow",
        "engine": "simulated",
        "max_in_flight": 4,
        "simulation": {"latency_s": 0.2},
    },
}


@dataclass(frozen=True)
class LiveMill:
    """A running server."""

    url: str
    """Without a slash at its end."""
    settings: Settings
    """Those of its processes, the broker included."""
    backends: Backends
    folder: Path
    web_pid: int
    """The web server's own process; those that answer are its children."""

    def key(self, role: Role = Role.ADMIN, tenant: str = "local", name: str = "test") -> str:
        """The secret of a new key."""
        return create_key(self.backends.database, tenant=tenant, name=name, role=role).secret


@contextlib.contextmanager
def live_mill(
    folder: Path, *, models: tuple[str, ...] = ("fast", "slow"), **settings: Any
) -> Iterator[LiveMill]:
    """Redis, a system worker, one engine worker for each of `models`, and the web server."""
    redis = EmbeddedRedis(folder / "redis")
    redis.start(folder / "redis.log")
    values = {
        "data_dir": str(folder / "data"),
        "redis_url": redis.url,
        "models": MODELS,
        "default_model": "fast",
        "flush_s": 0.1,
        "tick_s": 0.5,
        "web_port": _free_port(),
        "web_processes": 1,
        **settings,
    }
    loaded = load_settings(**values)
    backends = Backends.open(loaded)
    backends.database.migrate()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GRISTMILL_")},
        **{
            f"GRISTMILL_{name.upper()}": json.dumps(value) if isinstance(value, dict) else str(value)
            for name, value in values.items()
        },
    }
    children: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> int:
        with (folder / f"{'-'.join(arguments)}.log").open("wb") as log:
            children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "gristmill", *arguments],
                    cwd=folder,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
        return children[-1].pid

    try:
        start("system")
        web_pid = start("web")
        for model in models:
            start("worker", model)
        url = f"http://{loaded.web_host}:{loaded.web_port}"
        # Seldom: asking takes time from the processes that start.
        eventually(
            lambda: _answers(url) and len(live_workers(backends.database)) == len(models),
            "the server and its workers",
            longest_s=120,
            pause_s=0.2,
        )
        yield LiveMill(url, loaded, backends, folder, web_pid)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        backends.database.close()
        redis.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False
