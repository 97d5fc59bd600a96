"""Pinning: the environment that ties a worker's engine to its devices, set before torch is imported."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from workers.engine import EngineStartFailed


class Accelerator(StrEnum):
    """What engines of this machine run on."""

    CUDA = "cuda"
    CPU = "cpu"


def detect_accelerator() -> tuple[Accelerator, list[str]]:
    """The machine's accelerator and the names of its devices, without importing torch."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        listing = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
        names = [line.strip() for line in listing.stdout.splitlines() if line.strip()]
        if listing.returncode == 0 and names:
            return Accelerator.CUDA, names
    return Accelerator.CPU, [f"{os.cpu_count()} CPU cores"]


def engine_environment(
    accelerator: Accelerator, devices: str | None, socket_folder: Path, present: Mapping[str, str]
) -> dict[str, str]:
    """Variables that an engine on these devices needs; those the operator has set already are left alone.

    `devices` is a comma-separated list of GPU indices or UUIDs, on a CPU of cores (`0-3,8`); null takes
    what is visible.
    """
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if accelerator is Accelerator.CPU and devices is not None:
        # Without it vLLM binds its threads itself: several times faster than unbound, but every engine of
        # a host gets the same cores, so several engines need theirs named.
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = devices
    environment = {name: value for name, value in wanted.items() if name not in present}
    # Two engines must never share a socket folder; vLLM leaves its sockets behind when it is killed.
    environment["VLLM_RPC_BASE_PATH"] = str(socket_folder)
    if accelerator is Accelerator.CUDA and devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = devices
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return environment


def pin(environment: Mapping[str, str]) -> None:
    """Apply an engine's environment to this process.

    Raises:
        EngineStartFailed: torch was imported before, so that the devices can no longer be chosen.
    """
    if "torch" in sys.modules:
        raise EngineStartFailed("devices cannot be pinned: torch is already imported in this process")
    os.environ.update(environment)
