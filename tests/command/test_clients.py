"""The client commands against a running server, as a person uses them."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from config.settings import get_settings
from gristmill import main
from tasks.jobs import get_job
from tasks.tables import JobStatus, Role
from tests.live import LiveMill, live_mill
from tests.samples import request_line
from tests.waiting import eventually


@dataclass
class Person:
    """Somebody with a key, in a folder of their own."""

    mill: LiveMill
    folder: Path
    key: str

    def start(self, *arguments: str, key: str | None = None) -> "subprocess.Popen[str]":
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "gristmill", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "COLUMNS": "200",
                "GRISTMILL_SERVER_URL": self.mill.url,
                "GRISTMILL_API_KEY": key or self.key,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, key: str | None = None) -> tuple[int, str, str]:
        """Run a command to its end; status, output, errors."""
        process = self.start(*arguments, key=key)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def write(self, name: str, content: bytes) -> str:
        """A file in the folder; its name."""
        (self.folder / name).write_bytes(content)
        return name

    def submit(self, *arguments: str) -> str:
        """Make a job; its id."""
        status, output, errors = self.call("submit", *arguments, "--json")
        assert status == 0, errors
        job_id: str = json.loads(output)["id"]
        return job_id


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMill]:
    with live_mill(tmp_path_factory.mktemp("mill")) as running:
        yield running


@pytest.fixture
def person(mill: LiveMill, tmp_path: Path) -> Person:
    return Person(mill, tmp_path, mill.key(Role.SUBMIT))


CSV = b"name,text\nann,one\nbob,two\ncid,three\n"
LONG = b"".join(request_line(f"r{number}", model="slow") + b"\n" for number in range(4_000))
"""Runs for minutes: whoever looks at it on the busiest machine finds it running. Cancelled, not awaited."""

FAILING = b"name,text\nann,one\nbob,SIMULATE-ERROR\n"


def test_rows_are_submitted_watched_and_fetched_in_each_format(person: Person) -> None:
    person.write("people.csv", CSV)
    status, output, errors = person.call(
        "submit",
        "people.csv",
        "-t",
        "Say {{ text }}",
        "--id-column",
        "name",
        "--set",
        "max_tokens=5",
        "--watch",
    )
    assert status == 0, errors
    assert "completed: 3 succeeded, 0 failed, of 3" in output
    job_id = errors.split(":")[0]
    for name in ("out.jsonl", "out.csv", "deep/out.parquet"):
        status, output, errors = person.call("results", job_id, "-o", name)
        assert status == 0, errors
        assert (person.folder / name).stat().st_size > 0
    with (person.folder / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["text"]) for row in rows] == [("ann", "one"), ("bob", "two"), ("cid", "three")]
    assert pq.read_table(person.folder / "deep" / "out.parquet").num_rows == 3
    assert not list(person.folder.rglob("*.partial"))
    status, output, _ = person.call("results", job_id, "--which", "errors")
    assert (status, output) == (0, "")


def test_request_lines_are_submitted_and_some_that_fail_are_in_the_exit_status(person: Person) -> None:
    lines = [request_line("a", model="fast"), request_line("b", model="fast", prompt="SIMULATE-ERROR")]
    person.write("in.jsonl", b"\n".join(lines))
    status, output, errors = person.call("submit", "in.jsonl", "--watch")
    assert status == 1, errors
    assert "1 failed with 400" in output
    assert "completed: 1 succeeded, 1 failed, of 2" in output


def test_a_job_whose_input_is_faulty_says_why(person: Person) -> None:
    person.write("in.jsonl", request_line("a", model="fast") + b"\n{oops\n")
    status, output, _ = person.call("submit", "in.jsonl", "--watch")
    assert status == 2
    assert "line 2: " in output
    assert "invalid_json_line" in output


def test_a_file_is_checked_without_making_a_job(person: Person) -> None:
    person.write("people.csv", CSV)
    before = json.loads(person.call("jobs", "--json")[1])["data"]
    status, output, errors = person.call("validate", "people.csv", "-t", "Say {{ text }}")
    assert status == 0, errors
    assert "Say one" in output
    assert "3 requests for fast" in output
    status, output, _ = person.call("submit", "people.csv", "-t", "Say {{ txet }}", "--validate")
    assert status == 1
    assert "txet" in output
    assert json.loads(person.call("jobs", "--json")[1])["data"] == before


def test_what_failed_runs_again_as_a_new_job(person: Person) -> None:
    person.write("people.csv", FAILING)
    job_id = person.submit("people.csv", "-t", "{{ text }}")
    assert person.call("watch", job_id)[0] == 1
    status, output, errors = person.call("retry", job_id, "--watch", "--json")
    assert status == 1, errors
    job = json.loads(output)
    assert (job["parent_id"], job["counts"]["total"]) == (job_id, 1)


def test_a_running_job_is_listed_and_cancelled_and_keeps_what_it_has(person: Person) -> None:
    person.write("in.jsonl", LONG)
    job_id = person.submit("in.jsonl", "--priority", "bulk")
    database = person.mill.backends.database
    eventually(lambda: get_job(database, job_id).completed > 0)
    status, output, _ = person.call("jobs", "--status", "in_progress")
    assert status == 0
    assert job_id in output
    watching = person.start("watch", job_id)
    status, output, errors = person.call("results", job_id, "-o", "some.jsonl")
    assert status == 0, errors
    assert "still runs" in output
    assert (person.folder / "some.jsonl").read_text()
    status, output, errors = person.call("cancel", job_id)
    assert status == 0, errors
    output, errors = watching.communicate(timeout=60)
    assert watching.returncode == 2
    assert "cancelled: " in output
    assert get_job(database, job_id).status == JobStatus.CANCELLED
    status, _, errors = person.call("cancel", job_id)
    assert (status, errors) == (2, "gristmill: The job is cancelled and can no longer be cancelled.\n")


def test_ctrl_c_ends_the_watching_and_not_the_job(person: Person) -> None:
    person.write("in.jsonl", LONG)
    job_id = person.submit("in.jsonl")
    eventually(lambda: get_job(person.mill.backends.database, job_id).completed > 0)
    watching = person.start("watch", job_id)
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("in_progress: ")
    watching.send_signal(signal.SIGINT)
    output, errors = watching.communicate(timeout=60)
    assert watching.returncode == 130, errors
    assert f"gristmill watch {job_id}" in output
    assert get_job(person.mill.backends.database, job_id).status == JobStatus.IN_PROGRESS
    person.call("cancel", job_id)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("watch", "batch_0"), "No such job: 'batch_0'."),
        (("results", "../keys"), "No such job: '../keys'."),
        (("results", "batch_0", "-o", "out.xlsx"), "cannot tell the format of 'out.xlsx'"),
        (("retry", "batch_0"), "No such job"),
        (("submit", "people.csv"), "needs a 'template'"),
        (("submit", "people.csv", "-t", "{{ text"), "template"),
        (("submit", "people.csv", "-t", "x", "--set", "nothing"), "NAME=VALUE"),
        (("submit", "people.csv", "-t", "x", "--template-file", "people.csv"), "not both"),
        (("submit", "people.csv", "-t", "x", "-m", "gpt-9"), "'gpt-9' is not in the catalogue"),
        (("submit", "people.csv", "-t", "x", "--window", "soon"), "'window'"),
        (("jobs", "--server", "nowhere"), "is not a server's address"),
        (("jobs", "--key", "gm-wrong"), "GRISTMILL_API_KEY"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    person: Person, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    person.write("people.csv", CSV)
    monkeypatch.setenv("GRISTMILL_SERVER_URL", person.mill.url)
    monkeypatch.setenv("GRISTMILL_API_KEY", person.key)
    get_settings.cache_clear()
    try:
        done = CliRunner().invoke(main, arguments)
    finally:
        get_settings.cache_clear()
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]


def test_a_key_that_only_reads_cannot_submit(person: Person) -> None:
    person.write("people.csv", CSV)
    key = person.mill.key(Role.READ)
    status, _, errors = person.call("submit", "people.csv", "-t", "x", key=key)
    assert status == 2
    assert "needs a key with the role 'submit'" in errors


def test_progress_arrives_as_events_while_the_job_runs(person: Person) -> None:
    person.write("in.jsonl", LONG)
    job_id = person.submit("in.jsonl")
    headers = {"Authorization": f"Bearer {person.key}"}
    seen: list[dict[str, Any]] = []
    url = f"{person.mill.url}/api/jobs/{job_id}/events"
    with httpx.stream("GET", url, headers=headers, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                done = [event["counts"]["completed"] for event in seen if "counts" in event]
                if len({count for count in done if count}) == 2:
                    assert person.call("cancel", job_id)[0] == 0
    assert done == sorted(done)
    assert len(set(done)) > 2
    assert seen[-1] == {"status": "cancelled"}
