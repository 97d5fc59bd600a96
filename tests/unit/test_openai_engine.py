"""An engine behind a URL, against a small real server."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import httpx
import pytest

from config.catalogue import EngineKind, ModelEntry
from workers import openai_engine
from workers.engine import EngineAnswer, EngineRequest, EngineStartFailed, EngineUnavailable
from workers.openai_engine import ATTEMPTS, OpenAIEngine

T = TypeVar("T")

ANSWER = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


class Server(ThreadingHTTPServer):
    """Serves one model; answers as it is told, then well."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[tuple[int, bytes]] = []
        self.models_answer: tuple[int, bytes] = (200, b'{"data":[{"id":"org/remote"}]}')
        self.received: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(*self.server.models_answer)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append((self.path, headers, body))
        self._answer(
            *(self.server.script.pop(0) if self.server.script else (200, json.dumps(ANSWER).encode()))
        )

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def dead_url() -> Iterator[str]:
    """An address where nobody listens, kept from being given to anyone else."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}/v1"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_engine, "FIRST_BACKOFF_S", 0.001)


def with_engine(server_url: str, do: Callable[[OpenAIEngine], Awaitable[T]], **entry: Any) -> T:
    """Start an engine, use it, close it."""
    engine = OpenAIEngine(
        "local", ModelEntry(source="org/remote", engine=EngineKind.OPENAI, base_url=server_url, **entry)
    )

    async def use() -> T:
        try:
            await engine.start()
            return await do(engine)
        finally:
            await engine.close()

    return asyncio.run(use())


def run(server: Server, body: bytes = b'{"model":"local"}', **entry: Any) -> EngineAnswer:
    request = EngineRequest("req-1", "/v1/chat/completions", body, 1)
    return with_engine(server.url, lambda engine: engine.run(request), **entry)


def test_a_request_goes_out_as_it_is_under_the_models_name_there(server: Server) -> None:
    body = '{"model":"local","messages":["Grüße, 世界"],"x":{"deep":[1,2.5,null,true]}}'
    answer = run(server, body.encode(), api_key="hush")
    ((path, headers, sent),) = server.received
    assert path == "/v1/chat/completions"
    assert json.loads(sent) == {**json.loads(body), "model": "org/remote"}
    assert headers["authorization"] == "Bearer hush"
    assert headers["x-request-id"] == "req-1"
    assert answer == EngineAnswer(200, json.dumps(ANSWER).encode(), input_tokens=3, output_tokens=2)


def test_a_request_without_model_gets_one(server: Server) -> None:
    run(server, b"{}")
    assert json.loads(server.received[0][2]) == {"model": "org/remote"}
    assert "authorization" not in server.received[0][1]


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refusal_is_an_answer(server: Server, status: int) -> None:
    server.script = [(status, b'{"error":{"message":"no"}}')]
    assert run(server) == EngineAnswer(status, b'{"error":{"message":"no"}}')
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_again(server: Server, status: int) -> None:
    server.script = [(status, b"busy"), (status, b"{}")]
    assert run(server).status_code == 200
    assert len(server.received) == 3


def test_a_server_that_stays_in_trouble_is_unavailable(server: Server) -> None:
    server.script = [(503, b"{}")] * ATTEMPTS
    with pytest.raises(EngineUnavailable, match="status 503"):
        run(server)
    assert len(server.received) == ATTEMPTS


def test_a_server_that_is_gone_is_unavailable(server: Server, dead_url: str) -> None:
    async def lose_the_server(engine: OpenAIEngine) -> EngineAnswer:
        assert engine._client is not None
        engine._client.base_url = httpx.URL(dead_url)
        return await engine.run(EngineRequest("req-1", "/chat/completions", b"{}", 1))

    with pytest.raises(EngineUnavailable):
        with_engine(server.url, lose_the_server)


def test_an_answer_that_is_no_json_is_not_taken_for_one(server: Server) -> None:
    server.script = [(200, b"<html>")]
    with pytest.raises(EngineUnavailable, match="without JSON"):
        run(server)


@pytest.mark.parametrize("number", ["1e999", "9" * 5000], ids=["float", "integer"])
def test_a_body_that_cannot_be_read_is_that_requests_own_fault(server: Server, number: str) -> None:
    answer = run(server, b'{"model":"local","x":%s}' % number.encode())
    assert answer.status_code == 400
    assert "error" in json.loads(answer.body)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        # Chat and completions, responses, embeddings, and servers that say nothing.
        ({"prompt_tokens": 3, "completion_tokens": 2}, (3, 2)),
        ({"input_tokens": 4, "output_tokens": 5}, (4, 5)),
        ({"prompt_tokens": 3, "total_tokens": 3}, (3, 0)),
        ({"prompt_tokens": None}, (0, 0)),
        (None, (0, 0)),
    ],
)
def test_tokens_are_counted_as_the_server_says(
    server: Server, usage: dict[str, Any] | None, tokens: tuple[int, int]
) -> None:
    server.script = [(200, json.dumps({"usage": usage}).encode())]
    answer = run(server)
    assert (answer.input_tokens, answer.output_tokens) == tokens


def test_figures_are_what_this_worker_sent_and_got(server: Server) -> None:
    async def three(engine: OpenAIEngine) -> tuple[int, int, int]:
        requests = (EngineRequest(f"r{n}", "/v1/chat/completions", b"{}", 1) for n in range(3))
        await asyncio.gather(*(engine.run(request) for request in requests))
        figures = engine.figures()
        return figures.running_requests, figures.prompt_tokens, figures.generation_tokens

    assert with_engine(server.url, three) == (0, 9, 6)


@pytest.mark.parametrize(
    ("models_answer", "message"),
    [
        ((200, b'{"data":[{"id":"a"},{"id":"b"}]}'), "serves a, b, not 'org/remote'"),
        ((200, b'{"data":[]}'), "serves nothing"),
        ((401, b"{}"), "401"),
        ((200, b"<html>"), "/v1/models"),
        ((200, b"{}"), "/v1/models"),
        ((200, b"[]"), "/v1/models"),
    ],
)
def test_a_server_that_lacks_the_model_is_no_engine(
    server: Server, models_answer: tuple[int, bytes], message: str
) -> None:
    server.models_answer = models_answer
    with pytest.raises(EngineStartFailed, match=message):
        run(server)
    assert server.received == []


def test_a_server_that_cannot_be_reached_is_no_engine(dead_url: str) -> None:
    async def nothing(_: OpenAIEngine) -> None: ...

    with pytest.raises(EngineStartFailed, match=r"http://127\.0\.0\.1:\d+/v1/models"):
        with_engine(dead_url, nothing)
