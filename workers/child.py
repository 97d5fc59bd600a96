"""A child process of the supervisor: in a session of its own, logged to a file, stopped as a group."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from workers.orphan_guard import PARENT_VARIABLE

_PR_SET_PDEATHSIG = 1
_C_LIBRARY = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    assert _C_LIBRARY is not None
    _C_LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """One process and all its descendants, as long as those stay in its group.

    A session of its own keeps the terminal's Ctrl-C away from it: the supervisor decides the order in
    which things stop.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log_file: Path,
        environment: Mapping[str, str] | None = None,
        *,
        dies_with_parent: bool = False,
    ) -> None:
        self.name = name
        self.log_file = log_file
        self._command = command
        self._environment = environment or {}
        # Gristmill's own children watch their parent themselves; a foreign program needs the kernel's help.
        self._pre_exec = _die_with_parent if dies_with_parent and _C_LIBRARY is not None else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; what it prints is appended to its log file."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        log: IO[bytes]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self._environment, PARENT_VARIABLE: str(os.getpid())},
                preexec_fn=self._pre_exec,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process itself still runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id; null while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """Its exit status; null while it runs."""
        return None if self._process is None else self._process.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self, grace_s: float) -> None:
        """SIGTERM, at most `grace_s` seconds of waiting, then SIGKILL to whatever is left of the group."""
        if self._process is None:
            return
        self.ask_to_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self, count: int) -> str:
        """The end of its log, for a person to read."""
        if not self.log_file.is_file():
            return ""
        with self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - 16_384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
