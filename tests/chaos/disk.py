"""A disk that is full for a while: a small one that is filled, or files that may not grow."""

import contextlib
import errno
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil

from tests.chaos.faults import Fault
from tests.chaos.mill import Mill

DISK_BYTES = 32 * 2**20
"""Enough for a short run, and filled at once."""

FULL_S = 3.0


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of its own at the folder; false where this user may mount none."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "gristmill-chaos", str(folder)]
    try:
        may_mount = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        may_mount = False
    try:
        yield may_mount
    finally:
        if may_mount:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_disk(mill: Mill, random: Random) -> None:
    """No byte is left on the disk of the data folder, whatever is freed in between."""
    ballast = mill.settings.data_dir / "ballast"
    end = time.monotonic() + FULL_S
    try:
        # Unbuffered: what does not fit is not kept for later.
        with ballast.open("wb", buffering=0) as file:
            while time.monotonic() < end:
                _fill(file.fileno())
                time.sleep(0.02)
    finally:
        ballast.unlink()


def _fill(descriptor: int) -> None:
    for block in (2**20, 2**12, 1):
        try:
            while os.write(descriptor, bytes(block)) == block:
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def forbid_growth(mill: Mill, random: Random) -> None:
    """No file of the web server and the system workers may grow; their logs neither.

    Those of the engine workers may, because they are the witness of what ran.
    """
    pids = [pid for name, part in mill.parts.items() if not name.startswith("engine") for pid in part.pids()]
    before = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            before[pid] = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[pid][1]))
    time.sleep(FULL_S)
    for pid, limit in before.items():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


FILL_DISK = Fault("fill_disk", fill_disk, longest_s=FULL_S)
FORBID_GROWTH = Fault("forbid_growth", forbid_growth, longest_s=FULL_S)
