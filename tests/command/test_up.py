"""`gristmill up` and what looks at it: real processes, simulated engine."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.command.conftest import Commands, wait_until


class Up:
    """A running `gristmill up`, and what it printed so far."""

    def __init__(self, commands: Commands, *arguments: str) -> None:
        self.commands = commands
        self._log = commands.folder / f"up{len(list(commands.folder.glob('up*.log')))}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                commands.command("up", "--model", "fast", "--port", "0", *arguments),
                cwd=commands.folder,
                env=commands.environment_of_all(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output or self.process.poll() is not None, text)
        assert text in self.output, self.output

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.output)
        assert match, self.output
        return match[1]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def up(commands: Commands) -> Iterator[Up]:
    commands.environment["GRISTMILL_FLOWER_PORT"] = "0"
    running = Up(commands)
    yield running
    if running.process.poll() is None:
        running.stop()
    commands.wait_for_silence()


def test_everything_starts_survives_a_death_and_stops(up: Up, commands: Commands) -> None:
    for part in ("web server is ready", "engine is ready", "Flower is ready"):
        up.wait_for(part)
    url = up.found(r"pages +(http://\S+)")
    key = up.found(r"(gm-\S+)")
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx.get(f"{url}/api/key", headers=headers).json()["role"] == "admin"
    link = up.found(r"(http://\S+/login\?token=\S+)")
    assert link.startswith(url)

    # One request through all of it.
    asked = {"model": "fast", "messages": [{"role": "user", "content": "Hello"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers, timeout=60)
    assert answer.json()["choices"]

    status, shown = commands.call("status")
    assert status == 0, shown
    assert url in shown
    for name in ("redis", "system", "web", "flower", "engine"):
        assert re.search(rf"{name} +process \d+", shown), shown
    assert "worker   fast@" in shown

    engine = re.search(r"engine +process (\d+)", shown)
    assert engine
    os.kill(int(engine[1]), signal.SIGKILL)
    up.wait_for("The engine worker ended with status -9; starting another in 1 s")
    wait_until(lambda: up.output.count("The engine is ready") == 2, "another engine")

    flower = up.found(r"Flower +(http://\S+),")
    password = up.found(r"user gristmill, password (\S+)")
    assert httpx.get(f"{flower}/tasks").status_code == 401
    assert httpx.get(f"{flower}/api/tasks").status_code == 401
    with httpx.Client(base_url=flower, auth=("gristmill", password)) as client:
        assert client.get("/").status_code == 200
        # It looks only.
        assert client.post("/api/worker/shutdown/any").status_code in (401, 403, 405)
        chunk = next(
            task for task in client.get("/api/tasks").json().values() if task["name"] == "gristmill.chunk"
        )
    assert re.match(r"\('batch_[0-9a-f]{24}', 0, 1, ", chunk["args"])
    assert "Hello" not in str(chunk)
    assert chunk["worker"].startswith("fast@")
    for name in ("secret_key", "flower_password"):
        assert (commands.data_dir / name).stat().st_mode & 0o077 == 0
    for process in commands.processes():
        assert password not in " ".join(process.cmdline())

    status, refused = commands.call("up", "--model", "fast", "--port", "0")
    assert status == 2
    assert f"is in use by process {up.process.pid}" in refused

    assert up.stop() == 0
    assert "Everything has stopped" in up.output
    commands.wait_for_silence()
    assert commands.call("status")[0] == 1
    assert not (commands.data_dir / "up.json").exists()


def test_a_later_start_shows_no_key_but_a_link(up: Up, commands: Commands) -> None:
    up.wait_for("web server is ready")
    assert up.stop() == 0
    again = Up(commands, "--no-flower")
    again.wait_for("web server is ready")
    assert again.stop() == 0
    assert "gm-" in up.output
    assert "gm-" not in again.output
    assert "/login?token=" in again.output
    assert "Flower" not in again.output


def test_kill_9_of_the_whole_leaves_nothing_running(up: Up, commands: Commands) -> None:
    up.wait_for("engine is ready")
    assert len(commands.processes()) >= 6
    up.process.kill()
    up.process.wait()
    commands.wait_for_silence()
    # What it said of itself is old.
    status, shown = commands.call("status")
    assert status == 1
    assert "Nothing runs" in shown


def test_a_port_that_is_taken_is_named(commands: Commands) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, output = commands.call("up", "--model", "fast", "--port", str(port))
    assert status == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in output
    assert "GRISTMILL_WEB_PORT" in output


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GRISTMILL_REDIS_URL", "redis://:secret@127.0.0.1:1/0", "Redis at 127.0.0.1:1 cannot be reached"),
        (
            "GRISTMILL_DATABASE_URL",
            "postgresql+psycopg://x:secret@127.0.0.1:1/x",
            "the database 127.0.0.1:1 cannot be used",
        ),
    ],
)
def test_what_is_set_and_cannot_be_reached_is_named_without_its_password(
    commands: Commands, variable: str, value: str, message: str
) -> None:
    commands.environment[variable] = value
    status, output = commands.call("up", "--model", "fast", "--port", "0")
    assert status == 2
    assert message in output
    assert "secret" not in output
    assert "Traceback" not in output


def test_keys_are_made_listed_and_revoked_without_a_server(commands: Commands) -> None:
    status, secret = commands.call("keys", "create", "--name", "nightly", "--role", "read", "--quiet")
    assert status == 0
    assert re.fullmatch(r"gm-\S{40,}\n", secret)
    status, shown = commands.call("keys", "list")
    assert status == 0
    assert "nightly" in shown
    assert secret.strip() not in shown
    (key_id,) = re.findall(r"key_[0-9a-f]{24}", shown)
    assert commands.call("keys", "revoke", key_id)[0] == 0
    status, output = commands.call("keys", "revoke", "key_none")
    assert status == 2
    assert "No such key" in output


def test_a_folder_nobody_uses_is_said_to_be_idle(commands: Commands, tmp_path: Path) -> None:
    status, output = commands.call("status", "--data-dir", str(tmp_path / "new"))
    assert status == 1
    assert "Nothing runs" in output
