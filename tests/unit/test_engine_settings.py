"""What an engine is started with: its devices, its command line."""

from pathlib import Path

import pytest

from workers.devices import Accelerator, engine_environment
from workers.vllm_engine import command_line

SOCKETS = Path("/run/sockets")


def environment(accelerator: Accelerator, devices: str | None = None, **present: str) -> dict[str, str]:
    return engine_environment(accelerator, devices, SOCKETS, present)


def test_an_engine_on_gpus_sees_its_own_devices_only() -> None:
    variables = environment(Accelerator.CUDA, "2,3", CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert variables["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_an_engine_without_named_devices_keeps_what_is_visible() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environment(Accelerator.CUDA, None)


def test_an_engine_on_the_cpu_is_bound_to_the_cores_it_is_given() -> None:
    assert environment(Accelerator.CPU, "0-3,8")["VLLM_CPU_OMP_THREADS_BIND"] == "0-3,8"
    assert "CUDA_VISIBLE_DEVICES" not in environment(Accelerator.CPU, "0")
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment(Accelerator.CPU, None)
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment(Accelerator.CUDA, "0")


def test_what_the_operator_set_is_left_alone() -> None:
    variables = environment(Accelerator.CPU, VLLM_CPU_OMP_THREADS_BIND="0-3", VLLM_NO_USAGE_STATS="0")
    assert "VLLM_CPU_OMP_THREADS_BIND" not in variables
    assert "VLLM_NO_USAGE_STATS" not in variables


@pytest.mark.parametrize("accelerator", list(Accelerator))
def test_an_engine_never_shares_its_sockets_and_never_calls_home(accelerator: Accelerator) -> None:
    variables = environment(accelerator, VLLM_RPC_BASE_PATH="/tmp/shared")  # noqa: S108
    assert variables["VLLM_RPC_BASE_PATH"] == str(SOCKETS)
    assert (variables["VLLM_NO_USAGE_STATS"], variables["DO_NOT_TRACK"]) == ("1", "1")


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({}, []),
        ({"max_model_len": 4096}, ["--max-model-len", "4096"]),
        ({"gpu_memory_utilization": 0.5}, ["--gpu-memory-utilization", "0.5"]),
        ({"runner": "pooling"}, ["--runner", "pooling"]),
        # A switch has no value; off is a switch of its own.
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        # What is not a plain value travels as JSON.
        ({"limit_mm_per_prompt": {"image": 2}}, ["--limit-mm-per-prompt", '{"image":2}']),
        ({"cudagraph_capture_sizes": [1, 2]}, ["--cudagraph-capture-sizes", "[1,2]"]),
        # In the order they were given.
        ({"b": 1, "a_b_c": 2}, ["--b", "1", "--a-b-c", "2"]),
    ],
)
def test_engine_arguments_become_command_line_flags(arguments: dict[str, object], flags: list[str]) -> None:
    assert command_line(arguments) == flags
