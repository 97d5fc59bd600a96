"""The data folder of a single machine: one Gristmill at a time."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tasks.errors import UserError


class DataFolder:
    """Holds the folder's lock while the block runs; the kernel drops it when the process dies.

    Raises:
        UserError: another process has the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def logs(self) -> Path:
        """Where the children's logs go."""
        return self.path / "logs"

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (self.path / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise UserError(
                f"the data folder {self.path} is in use by process {holder}: "
                "wait for it, or choose another with --data-dir",
                code="data_folder_in_use",
            ) from error
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()


def holder(path: Path) -> int | None:
    """The process that has the folder now, if any."""
    try:
        with (path / "lock").open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read() or 0)
    except FileNotFoundError:
        pass
    return None
