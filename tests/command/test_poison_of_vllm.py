"""A request that takes a real engine with it."""

import json
from pathlib import Path

import pytest

from tests.command.conftest import Commands

pytestmark = pytest.mark.vllm

REQUESTS = 501
POISON = 341


def test_a_request_that_kills_a_real_engine_fails_alone(commands: Commands) -> None:
    commands.models["tiny"] = {
        "source": "builtin:tiny",
        "engine_args": {
            "max_model_len": 512,
            "max_num_seqs": 64,
            "dtype": "float32",
            "logits_processors": "tests.command.poison:Poison",
        },
    }
    commands.environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    file = commands.write("prompts.jsonl", REQUESTS, "tiny", max_tokens=8)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[POISON]["body"]["vllm_xargs"] = {"poison": 1}
    file.write_text("\n".join(map(json.dumps, lines)))
    status, output = commands.call("run", str(file), "-o", "answers.jsonl")
    assert status == 1, output
    results = [json.loads(line) for line in (commands.folder / "answers.jsonl").read_text().splitlines()]
    failed = {result["custom_id"]: result["error"]["code"] for result in results if result["error"]}
    assert failed == {f"r{POISON}": "engine_crash"}
    assert [result["response"]["status_code"] for result in results if result["response"]] == [200] * 500
    log = (commands.data_dir / "logs" / "engine.log").read_text()
    assert 1 <= log.count("engine_restarted") <= 4
    assert "starting another" not in output, "the engine is started again in its process"
