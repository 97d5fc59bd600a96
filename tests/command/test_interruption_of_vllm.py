"""Killing a run on a real engine."""

import pytest

from tests.command.conftest import REQUESTS, Commands, run_again, wait_until

pytestmark = pytest.mark.vllm


def test_on_a_real_engine_kills_cost_only_what_was_in_flight(commands: Commands) -> None:
    commands.models["tiny"] = {
        "source": "builtin:tiny",
        "engine_args": {
            "max_model_len": 512,
            "max_num_seqs": 4,
            "dtype": "float32",
            "enable_log_requests": True,
        },
    }
    commands.environment["GRISTMILL_LEASE_S"] = "3"
    commands.environment["GRISTMILL_CHUNK_REQUESTS"] = "32"
    file = str(commands.write("prompts.jsonl", REQUESTS, "tiny", max_tokens=24, ignore_eos=True))

    process = commands.start("run", file, "-o", "answers.jsonl")
    wait_until(lambda: len(commands.finished()) >= 20, "results of the first engine")
    worker = commands.worker()
    engine_processes = worker.children(recursive=True)
    assert engine_processes
    worker.kill()
    wait_until(lambda: not any(child.is_running() for child in engine_processes), "no orphaned engine")

    after_worker = len(commands.finished())
    wait_until(lambda: len(commands.finished()) >= after_worker + 20, "results of the second engine")
    commands.kill_group(process)
    commands.wait_for_silence()
    run_again(commands, file)
