"""Gristmill against vLLM itself: the same chat requests, three ways, alternating in one run.

    python benchmarks/throughput.py --requests 2000 --rounds 5

- `LLM.generate`, with prompts that were rendered and tokenised before: the engine and nothing else
- `run_batch`, vLLM's own batch runner: a file in, a file out
- Gristmill: a file in, every result in the database, through queue and leases

Each has an engine of its own with the same arguments, started before anything is timed. What counts are the
ratios within a round. Uses the built-in model, whose two layers make the front end the bottleneck: the
worst case for anything that is not the engine.
"""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from celery import Celery

from config.celeryconfig import celery_settings
from config.settings import load_settings
from tasks.backends import Backends
from tasks.file_sink import store_file
from tasks.jobs import get_job
from tasks.submission import JobRequest, create_job
from tasks.tables import FINAL_STATUSES, JobStatus
from workers.data_folder import DataFolder
from workers.local_mill import LocalMill

OUTPUT_TOKENS = 16
PROMPT_WORDS = 40
ENGINE_ARGS: dict[str, Any] = {
    "max_model_len": 1024,
    "max_num_seqs": 256,
    "dtype": "float32",
    "enforce_eager": True,
    # As Gristmill sets it on a CPU, see `workers.vllm_engine`.
    "enable_chunked_prefill": False,
    # Repeating the same prompts must not make later rounds faster.
    "enable_prefix_caching": False,
}
ROUND_TIMEOUT_S = 600
READY = "READY"


@click.command()
@click.option("--requests", default=2000, show_default=True, help="Chat requests in a round.")
@click.option("--rounds", default=5, show_default=True, help="Rounds that count; one more warms up.")
@click.option("--side", type=click.Choice(["generate", "run_batch"]), hidden=True)
@click.option("--model-folder", hidden=True)
@click.option("--input", "input_file", hidden=True)
def main(
    requests: int, rounds: int, side: str | None, model_folder: str | None, input_file: str | None
) -> None:
    """Compare throughput, as ratios to `LLM.generate`."""
    if side is not None:
        assert model_folder is not None
        assert input_file is not None
        {"generate": serve_generate, "run_batch": serve_run_batch}[side](model_folder, Path(input_file))
        return
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
    )
    with TemporaryDirectory(prefix="gristmill-bench-") as folder:
        compare(Path(folder), requests, rounds)


def compare(folder: Path, requests: int, rounds: int) -> None:
    """Start all three, then take turns."""
    # In a process of its own: this one must not import torch before its children are started.
    build = "import sys, pathlib, workers.tiny_model as t; t.build_tiny_model(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(folder)], check=True, capture_output=True)
    (model_folder,) = folder.glob("tiny-*")
    input_file = folder / "input.jsonl"
    write_input(input_file, requests)
    models = {"tiny": {"source": str(model_folder), "engine_args": ENGINE_ARGS}}
    settings = load_settings(data_dir=folder / "data", models=models, default_model="tiny")
    environment = {
        "GRISTMILL_DATA_DIR": str(settings.data_dir),
        "GRISTMILL_MODELS": json.dumps(models),
        "GRISTMILL_DEFAULT_MODEL": "tiny",
    }
    backends = Backends.open(settings)
    backends.database.migrate()
    with DataFolder(settings.data_dir) as data, LocalMill(settings, data, environment, print) as mill:
        app = Celery("benchmark", set_as_current=False)
        app.conf.update(celery_settings(mill.settings))
        mill.start_engine("tiny")
        sides: dict[str, Callable[[], float]] = {
            "LLM.generate": Side("generate", model_folder, input_file).measure,
            "run_batch": Side("run_batch", model_folder, input_file).measure,
            "Gristmill": lambda: measure_gristmill(backends, app, input_file),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            names = list(sides)
            # Each goes first as often as the others.
            for name in names[number % 3 :] + names[: number % 3]:
                taken = sides[name]()
                if number > 0:
                    seconds[name].append(taken)
                print(f"round {number}  {name:13} {requests / taken:8.0f} requests/s", flush=True)
    print_ratios(seconds)


def print_ratios(seconds: dict[str, list[float]]) -> None:
    """Throughput relative to `LLM.generate`, within each round."""
    print(f"\n{'':13} {'median':>8} {'lowest':>8} {'highest':>8}   ratio to LLM.generate")
    for name, taken in seconds.items():
        ratios = [base / own for base, own in zip(seconds["LLM.generate"], taken, strict=True)]
        print(f"{name:13} {statistics.median(ratios):8.2f} {min(ratios):8.2f} {max(ratios):8.2f}")


class Side:
    """A process with an engine of its own that runs the input whenever it is told to."""

    def __init__(self, side: str, model_folder: Path, input_file: Path) -> None:
        command = [sys.executable, __file__, "--side", side]
        command += ["--model-folder", str(model_folder), "--input", str(input_file)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._read(READY)

    def measure(self) -> float:
        """Seconds that one pass over the input takes."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._read("SECONDS").split()[1])

    def _read(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line
        sys.exit(f"{self._process.args!r} ended with status {self._process.wait()}")


def answer_when_told(measure: Callable[[], float]) -> None:
    """The side's half of the conversation; ends when the other end closes."""
    print(READY, flush=True)
    for _ in sys.stdin:
        print(f"SECONDS {measure()}", flush=True)


def serve_generate(model_folder: str, input_file: Path) -> None:
    """`LLM.generate` on rendered prompts."""
    from vllm import LLM, SamplingParams

    engine = LLM(model_folder, disable_log_stats=True, **ENGINE_ARGS)
    tokenizer = engine.get_tokenizer()
    bodies = [json.loads(line)["body"] for line in input_file.read_text().splitlines()]
    prompts = [
        {
            "prompt_token_ids": tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=True, tokenize=True, return_dict=True
            )["input_ids"]
        }
        for body in bodies
    ]
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)

    def measure() -> float:
        started = time.perf_counter()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        taken = time.perf_counter() - started
        assert all(len(output.outputs[0].token_ids) == OUTPUT_TOKENS for output in outputs)
        return taken

    answer_when_told(measure)


def serve_run_batch(model_folder: str, input_file: Path) -> None:
    """vLLM's batch runner, on an engine that stays."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.run_batch import make_arg_parser, run_batch
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    from workers.vllm_engine import command_line

    output = input_file.with_name("run_batch.jsonl")
    arguments = ["-i", str(input_file), "-o", str(output), "--model", model_folder]
    arguments += ["--served-model-name", "tiny", *command_line(ENGINE_ARGS)]
    namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    loop = asyncio.new_event_loop()

    async def start() -> AsyncLLM:
        return AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(namespace))

    engine = loop.run_until_complete(start())
    expected = len(input_file.read_text().splitlines())

    def measure() -> float:
        started = time.perf_counter()
        loop.run_until_complete(run_batch(engine, namespace))
        taken = time.perf_counter() - started
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        assert len(lines) == expected
        assert all(line["error"] is None for line in lines)
        return taken

    answer_when_told(measure)


def measure_gristmill(backends: Backends, app: Celery, input_file: Path) -> float:
    """From the file to the job's final state: storing, intake, dispatch, engine, results."""
    started = time.perf_counter()
    with input_file.open("rb") as opened:
        file = store_file(backends, iter(lambda: opened.read(1 << 20), b""), filename=input_file.name)
    job = create_job(backends, JobRequest(endpoint="/v1/chat/completions", input_file_id=file.id))
    app.send_task("gristmill.intake", args=(job.id,))
    while (job := get_job(backends.database, job.id)).status not in FINAL_STATUSES:
        if time.perf_counter() - started > ROUND_TIMEOUT_S:
            sys.exit(f"{job.id} is {job.status} after {ROUND_TIMEOUT_S} s")
        time.sleep(0.05)
    assert job.status == JobStatus.COMPLETED, job.errors
    assert job.failed == 0
    # The last step, from the last result to the final state, is not the engine's business but ours.
    return time.perf_counter() - started


def write_input(file: Path, requests: int) -> None:
    """Chat requests of some 60 prompt tokens and exactly `OUTPUT_TOKENS` of output."""
    chance = random.Random(0)
    words = ["grain", "mill", "stone", "flour", "water", "wheel", "sack", "miller", "bread", "wind", "sail"]
    with file.open("w") as opened:
        for number in range(requests):
            body = {
                "model": "tiny",
                "max_tokens": OUTPUT_TOKENS,
                "ignore_eos": True,
                "messages": [{"role": "user", "content": " ".join(chance.choices(words, k=PROMPT_WORDS))}],
            }
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            opened.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
