"""The clients of `benchmarks/ways_in.py`, as Locust runs them: each submits batches and watches them."""

import json
import os
from collections import deque
from uuid import uuid4

from locust import HttpUser, between, task

LINES = 20
WATCHED = 5
"""Batches a client keeps looking at; older ones it forgets."""


class Client(HttpUser):
    """Submits now and then, and polls in between."""

    wait_time = between(0.2, 1.0)

    def on_start(self) -> None:
        """Every client has the same key and its own batches."""
        self.client.headers["Authorization"] = f"Bearer {os.environ['BENCHMARK_KEY']}"
        self.batches: deque[str] = deque(maxlen=WATCHED)
        self.submit()

    @task(2)
    def submit(self) -> None:
        """Upload a file and start a batch."""
        lines = [
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": "simulated",
                    "messages": [{"role": "user", "content": f"Grind {uuid4()}"}],
                },
            }
            for number in range(LINES)
        ]
        content = "\n".join(json.dumps(line) for line in lines)
        file = self.client.post(
            "/v1/files",
            files={"file": ("in.jsonl", content)},
            data={"purpose": "batch"},
            name="POST /v1/files",
        )
        if not file.ok:
            return
        batch = self.client.post(
            "/v1/batches",
            json={
                "input_file_id": file.json()["id"],
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            },
            name="POST /v1/batches",
        )
        if batch.ok:
            self.batches.append(batch.json()["id"])

    @task(8)
    def poll(self) -> None:
        """Look at one batch, as a client's loop does."""
        if self.batches:
            self.client.get(f"/v1/batches/{self.batches[-1]}", name="GET /v1/batches/{id}")

    @task(2)
    def list_batches(self) -> None:
        """The first page of all batches."""
        self.client.get("/v1/batches?limit=20", name="GET /v1/batches")

    @task(2)
    def watch_job(self) -> None:
        """Progress, rate and time left."""
        if self.batches:
            self.client.get(f"/api/jobs/{self.batches[0]}", name="GET /api/jobs/{id}")

    @task(1)
    def read_results(self) -> None:
        """A page of results, whether all are in or not."""
        if self.batches:
            self.client.get(
                f"/api/jobs/{self.batches[0]}/results?limit=20", name="GET /api/jobs/{id}/results"
            )
