"""`gristmill up` and what looks at it: real processes, simulated engine."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from config.settings import load_settings
from tasks.keys import create_key, key_id_of_login_token, list_keys
from tasks.tables import Role
from tests.command.conftest import Commands, wait_until

STUCK_S = 60.0
STUCK = {
    "source": "stuck",
    "engine": "simulated",
    "simulation": {"latency_s": STUCK_S, "log_requests": True},
}
AWAY = {"source": "away", "engine": "openai", "base_url": "http://127.0.0.1:1/v1"}


class Up:
    """A running `gristmill up`, and what it printed so far."""

    def __init__(self, commands: Commands, *arguments: str, model: str) -> None:
        self.commands = commands
        self._log = commands.folder / f"up{len(list(commands.folder.glob('up*.log')))}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                commands.command("up", "--model", model, "--port", "0", *arguments),
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
        match = re.search(pattern, self.output, flags=re.MULTILINE)
        assert match, self.output
        return match[1]

    def first_key(self) -> dict[str, str]:
        """The key it printed, as headers."""
        return {"Authorization": f"Bearer {self.found('(gm-[A-Za-z0-9_-]+)')}"}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def start(commands: Commands) -> Iterator[Callable[..., Up]]:
    """Starts one; all are stopped at the end."""
    commands.environment["GRISTMILL_FLOWER_PORT"] = "0"
    started: list[Up] = []

    def start(*arguments: str, model: str = "fast") -> Up:
        started.append(Up(commands, *arguments, model=model))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()
    commands.wait_for_silence()


@pytest.fixture
def up(start: Callable[..., Up]) -> Up:
    return start()


def test_everything_starts_survives_a_death_and_stops(up: Up, commands: Commands) -> None:
    for part in ("web server is ready", "engine is ready", "Flower is ready"):
        up.wait_for(part)
    url = up.found(r"pages +(http://\S+)")
    headers = up.first_key()
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

        def shows_all_lanes() -> bool:
            page = client.get("/broker").text
            return all(f"<td>fast.{lane}</td>" in page for lane in ("urgent", "normal", "bulk"))

        wait_until(shows_all_lanes, "the lanes as queues of the broker")
    assert re.fullmatch(
        r"job batch_[0-9a-f]{24}, chunk 0, requests 1, tokens \d+, lane fast\.urgent", chunk["args"]
    )
    assert "Hello" not in str(chunk)
    assert chunk["worker"].startswith("fast@")
    for name in ("secret_key", "flower_password"):
        assert (commands.data_dir / name).stat().st_mode & 0o077 == 0
    assert "Traceback" not in (commands.data_dir / "logs" / "engine.log").read_text()
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


def test_a_later_start_shows_no_key_but_a_link(start: Callable[..., Up], commands: Commands) -> None:
    up = start("--no-flower")
    up.wait_for("web server is ready")
    assert up.stop() == 0
    database = commands.database()
    # Newer, but of another tenant.
    create_key(database, tenant="other", name="theirs", role=Role.ADMIN)
    (first,) = (key.id for key in list_keys(database) if key.name == "first key")
    database.close()
    again = start("--no-flower")
    again.wait_for("web server is ready")
    assert again.stop() == 0
    assert "gm-" in up.output
    assert "gm-" not in again.output
    assert "The key 'first key' was shown when it was made, and is not shown again" in again.output
    link = again.found(r"as 'first key':\s+http://\S+/login\?token=(\S+)")
    settings = load_settings(data_dir=commands.data_dir)
    assert key_id_of_login_token(settings, link) == first
    assert "Flower" not in again.output


def test_a_second_ctrl_c_does_not_wait_for_the_engine(start: Callable[..., Up], commands: Commands) -> None:
    commands.models = {**commands.models, "stuck": STUCK}
    up = start("--no-flower", model="stuck")
    for part in ("web server is ready", "engine is ready"):
        up.wait_for(part)
    headers = up.first_key()
    url = up.found(r"pages +(http://\S+)")
    asked = {"model": "stuck", "prompts": ["Hello"]}
    assert httpx.post(f"{url}/api/jobs", json=asked, headers=headers).status_code == 201

    def is_in_the_engine() -> bool:
        return "simulated_request" in (commands.data_dir / "logs" / "engine.log").read_text()

    wait_until(is_in_the_engine, "a request in the engine")
    up.process.send_signal(signal.SIGINT)
    up.wait_for("Once more stops at once")
    assert up.process.poll() is None
    asked_again = time.monotonic()
    assert up.stop() == 130
    assert time.monotonic() - asked_again < STUCK_S / 2
    commands.wait_for_silence()
    assert [job.status for job in commands.jobs()] == ["in_progress"]


def test_an_engine_that_cannot_start_is_told_and_all_else_is_usable(
    start: Callable[..., Up], commands: Commands
) -> None:
    commands.models = {**commands.models, "away": AWAY}
    up = start("--no-flower", model="away")
    for part in ("web server is ready", "The engine does not start", "Everything else runs"):
        up.wait_for(part)
    # Why, from the engine's log; and that it is not tried in a hurry.
    assert "127.0.0.1:1/v1" in up.output
    assert re.search(r"The engine worker ended with status \d+; starting another in 60 s", up.output)
    url = up.found(r"pages +(http://\S+)")
    headers = up.first_key()
    assert httpx.get(f"{url}/api/key", headers=headers).status_code == 200
    status, shown = commands.call("status")
    assert status == 0
    assert re.search(r"engine +down; it is started again", shown)
    assert "none is ready" in shown
    assert up.stop() == 0
    commands.wait_for_silence()


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


def test_one_port_for_two_servers_is_refused(commands: Commands) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    commands.environment["GRISTMILL_FLOWER_PORT"] = port
    status, output = commands.call("up", "--model", "fast", "--port", port)
    assert status == 2
    assert f"port {port} is asked for twice" in output


@pytest.mark.parametrize("command", ["web", "system"])
def test_a_server_whose_database_is_away_says_so(commands: Commands, command: str) -> None:
    commands.environment["GRISTMILL_REDIS_URL"] = "redis://127.0.0.1:1/0"
    commands.environment["GRISTMILL_DATABASE_URL"] = "postgresql+psycopg://x:secret@127.0.0.1:1/x"
    status, output = commands.call(command)
    assert status == 2
    assert "the database 127.0.0.1:1 cannot be used" in output
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
