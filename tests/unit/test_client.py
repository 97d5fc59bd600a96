"""The command line's client: what it repeats, and how it says what went wrong."""

from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from tasks.errors import UserError
from web.client import Client, ServerAway
from web.watching import exit_status, watch_to_end

Handler = Callable[[httpx.Request], httpx.Response]


def client_of(*handlers: Handler, patience_s: float = 6.0) -> tuple[Client, list[httpx.Request]]:
    """A client whose calls are answered by these in turn, the last one for ever; and the calls it made."""
    calls: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        calls.append(request)
        return handlers[min(len(calls), len(handlers)) - 1](request)

    transport = httpx.MockTransport(answer)
    return Client("http://mill", "gm-secret", patience_s=patience_s, transport=transport), calls


def refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("Connection refused", request=request)


def cut(request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("peer closed connection", request=request)


def said(status: int, **error: str) -> Handler:
    return lambda _: httpx.Response(status, json={"error": error})


def good(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"id": "batch_1"})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.client.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("web.watching.FIRST_POLL_S", 0.001)


@pytest.mark.parametrize("away", [refused, cut, said(503, message="busy"), said(429, message="slowly")])
def test_a_read_is_repeated_until_the_server_is_back(away: Handler) -> None:
    client, calls = client_of(away, away, good)
    assert client.get("/api/jobs/batch_1") == {"id": "batch_1"}
    assert len(calls) == 3


def test_a_server_that_stays_away_is_an_error_that_says_what_to_do() -> None:
    client, _ = client_of(refused, patience_s=0.01)
    with pytest.raises(ServerAway, match=r"no server at http://mill .*gristmill up.*--server"):
        client.get("/api/jobs")


def test_a_command_that_may_have_arrived_is_not_sent_again() -> None:
    client, calls = client_of(cut, good)
    with pytest.raises(ServerAway, match="did not answer"):
        client.post("/api/jobs/batch_1/rerun")
    assert len(calls) == 1


def test_a_command_that_did_not_arrive_is_sent_again() -> None:
    client, calls = client_of(refused, good)
    assert client.post("/api/jobs/batch_1/rerun") == {"id": "batch_1"}
    assert len(calls) == 2


def test_a_submission_that_is_repeated_carries_the_same_file_and_the_same_idempotency_key(
    tmp_path: Path,
) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes(b"text\nhello\n")
    client, calls = client_of(cut, good)
    client.send_file("/api/jobs", {"template": "{{ text }}"}, file)
    client.send_file("/api/jobs", {"template": "{{ text }}"}, file)
    keys = [call.headers["Idempotency-Key"] for call in calls]
    assert keys[0] == keys[1] != keys[2]
    assert all(b"text\nhello\n" in call.content and b"{{ text }}" in call.content for call in calls)


@pytest.mark.parametrize("status", [400, 404, 409])
def test_a_refusal_is_the_servers_own_message_at_once(status: int) -> None:
    client, calls = client_of(said(status, message="No such job: 'x'.", code="not_found", param="id"))
    with pytest.raises(UserError) as raised:
        client.get("/api/jobs/x")
    assert (raised.value.message, raised.value.code, raised.value.param) == (
        "No such job: 'x'.",
        "not_found",
        "id",
    )
    assert len(calls) == 1


def test_a_wrong_key_says_where_a_key_comes_from() -> None:
    client, _ = client_of(said(401, message="No valid API key."))
    with pytest.raises(UserError, match=r"No valid API key.*GRISTMILL_API_KEY"):
        client.get("/api/jobs")


def test_a_server_of_another_kind_is_named_as_such() -> None:
    client, _ = client_of(lambda _: httpx.Response(404, text="<html>nginx</html>"))
    with pytest.raises(UserError, match="answered 404; is it a Gristmill server"):
        client.get("/api/jobs")


def test_the_key_goes_with_every_call() -> None:
    client, calls = client_of(good)
    client.get("/api/jobs")
    assert calls[0].headers["Authorization"] == "Bearer gm-secret"


@pytest.mark.parametrize("address", ["mill:8800", "ftp://mill", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="address"), Client(address, None, patience_s=0.01) as client:
        client.get("/api/jobs")


def test_a_key_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(UserError, match="key"):
        Client("http://mill", "ключ")


def test_a_download_that_breaks_off_starts_again() -> None:
    def half(_: httpx.Request) -> httpx.Response:
        def blocks() -> Iterator[bytes]:
            yield b"one\n"
            raise httpx.ReadError("reset")

        return httpx.Response(200, content=blocks())

    client, calls = client_of(half, lambda _: httpx.Response(200, content=b"one\ntwo\n"))
    taken = client.save("/x", {"format": "jsonl"}, lambda blocks, complete: (b"".join(blocks), complete))
    assert taken == (b"one\ntwo\n", True)
    assert len(calls) == 2


def test_a_download_says_whether_the_job_still_runs() -> None:
    headers = {"X-Gristmill-Complete": "false"}
    client, _ = client_of(lambda _: httpx.Response(200, content=b"one\n", headers=headers))
    assert client.save("/x", {}, lambda blocks, complete: (b"".join(blocks), complete)) == (b"one\n", False)


def job(status: str, *, failed: int = 0, ended: bool = True) -> dict[str, Any]:
    """A job of two requests, with what a watcher looks at."""
    return {
        "id": "batch_1",
        "status": status,
        "ended_at": "2026-01-01T00:00:00Z" if ended else None,
        "progress": 0.5,
        "read_share": 1.0,
        "counts": {"total": 2, "completed": 2 - failed, "failed": failed},
        "requests_per_s": 1.0,
        "tokens_per_s": 20.0,
        "seconds_left": 3.0,
        "usage": {"total_tokens": 40},
        "failures": {"400": failed} if failed else {},
        "errors": [],
    }


def shown(**fields: Any) -> Handler:
    return lambda _: httpx.Response(200, json=job(**fields))


def test_watching_outlasts_a_server_that_is_away_for_longer_than_one_call_waits() -> None:
    running, done = shown(status="in_progress", ended=False), shown(status="completed")
    client, calls = client_of(running, *[refused] * 5, running, done, patience_s=0.0)
    console = Console(file=StringIO(), width=200)
    assert watch_to_end(client, "/api/jobs/batch_1", console)["status"] == "completed"
    assert len(calls) == 8


def test_watching_gives_up_a_server_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.watching.AWAY_S", 0.0)
    client, _ = client_of(shown(status="in_progress", ended=False), refused, patience_s=0.0)
    with pytest.raises(ServerAway):
        watch_to_end(client, "/api/jobs/batch_1", Console(file=StringIO()))


def test_what_a_watcher_shows_cannot_move_the_cursor() -> None:
    ended = job("failed") | {
        "errors": [{"line": 1, "code": "x", "message": "\x1b[2J[red]gone", "param": None}]
    }
    client, _ = client_of(lambda _: httpx.Response(200, json=ended))
    screen = StringIO()
    watch_to_end(client, "/api/jobs/batch_1", Console(file=screen, force_terminal=False))
    assert "line 1: \ufffd[2J[red]gone" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        (job("completed"), 0),
        (job("completed", failed=1), 1),
        (job("failed"), 2),
        (job("expired", failed=1), 2),
        (job("cancelled"), 2),
        (job("in_progress", ended=False), 130),
    ],
)
def test_the_exit_status_says_how_the_job_ended(seen: dict[str, Any], status: int) -> None:
    assert exit_status(seen) == status
