"""A whole Gristmill with a real vLLM engine, started once for all tests of this folder."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from config.celeryconfig import celery_settings
from config.settings import load_settings
from tasks.backends import Backends
from tasks.file_sink import store_file
from tasks.jobs import get_job
from tasks.results import iter_results, output_line
from tasks.submission import JobRequest, create_job
from tasks.tables import FINAL_STATUSES, Job, ResultSet
from workers.data_folder import DataFolder
from workers.local_mill import LocalMill

DEADLINE_S = 240.0
"""Longest wait for a job, engine start-up included; reached only when something is broken."""

# The cases say "context 512 tokens"; prompts that are too long must be so for this model.
ENGINE_ARGS = {"max_model_len": 512, "max_num_seqs": 64, "dtype": "float32"}

CHAT_ARGS = {
    **ENGINE_ARGS,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    # Random weights like to write blanks until their tokens are used up.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}

MODELS: dict[str, Any] = {
    "tiny": {"source": "builtin:tiny", "engine_args": CHAT_ARGS},
    "tiny-embed": {
        "source": "builtin:tiny",
        "engine_args": {**ENGINE_ARGS, "runner": "pooling", "convert": "embed"},
    },
}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition of other processes; fails when it does not come true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.05)


@dataclass
class RunningMill:
    """A mill whose engine serves one model."""

    backends: Backends
    app: Celery
    mill: LocalMill

    def run(self, content: bytes, endpoint: str, model: str | None = None) -> Job:
        """Submit a file and wait for the end of its job."""
        file = store_file(self.backends, [content], filename="input.jsonl")
        job = create_job(self.backends, JobRequest(endpoint=endpoint, input_file_id=file.id, model=model))
        self.app.send_task("gristmill.intake", args=(job.id,))
        wait_until(lambda: self._advanced(job.id), f"the end of {job.id}")
        return get_job(self.backends.database, job.id)

    def _advanced(self, job_id: str) -> bool:
        job = get_job(self.backends.database, job_id)
        self.mill.keep_running(job.completed + job.failed)
        return job.status in FINAL_STATUSES

    def lines(self, job: Job, which: ResultSet) -> list[dict[str, Any]]:
        """The job's output or error lines, decoded."""
        results = iter_results(self.backends.database, job.id, which)
        return [json.loads(output_line(job.id, result)) for result in results]

    def answers(self, endpoint: str, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
        """Run bodies as one job; the whole response of each, in order."""
        lines = [
            {"custom_id": f"r{number}", "method": "POST", "url": endpoint, "body": body}
            for number, body in enumerate(bodies)
        ]
        content = "\n".join(json.dumps(line) for line in lines).encode()
        job = self.run(content, endpoint)
        assert job.errors is None, job.errors
        return [line["response"] for line in self.lines(job, ResultSet.ALL)]


def start_mill(folder: Path, model: str) -> Iterator[RunningMill]:
    """A mill of its own in this folder, serving this model."""
    config = folder / "gristmill.toml"
    settings = load_settings(data_dir=folder / "data", models=MODELS, default_model="tiny")
    environment = {
        "GRISTMILL_CONFIG": str(config),
        "GRISTMILL_DATA_DIR": str(settings.data_dir),
        "GRISTMILL_MODELS": json.dumps(MODELS),
        "GRISTMILL_DEFAULT_MODEL": "tiny",
        "HF_HUB_OFFLINE": "1",
    }
    config.touch()
    backends = Backends.open(settings)
    backends.database.migrate()
    with DataFolder(settings.data_dir) as data, LocalMill(settings, data, environment, print) as mill:
        app = Celery("tests", set_as_current=False)
        app.conf.update(celery_settings(mill.settings))
        mill.start_engine(model)
        yield RunningMill(backends, app, mill)
        app.pool.force_close_all()
    backends.database.close()


@pytest.fixture(scope="session")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMill]:
    """Chat, completions and responses."""
    yield from start_mill(tmp_path_factory.mktemp("mill"), "tiny")


@pytest.fixture(scope="session")
def embedding_mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMill]:
    """Embeddings, score and rerank."""
    yield from start_mill(tmp_path_factory.mktemp("embedding-mill"), "tiny-embed")
