"""The command line's side of the job API: calls that outlast a short restart of the server."""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import httpx

from tasks.errors import UserError

PATIENCE_S = 6.0
"""How long a call is repeated while the server is away or busy."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

CONNECT_S = 5.0
ANSWER_S = 600.0
"""Longest wait for an answer: a dry run reads its whole file first."""

AWAY = frozenset({429, 502, 503, 504})
"""Statuses that a repeated call may get rid of."""

READ_BYTES = 1 << 18

_Answer = TypeVar("_Answer")


class ServerAway(UserError):
    """The server cannot be reached, or does not answer."""


class Client:
    """A connection to one server with one key.

    Every method raises UserError with the server's own message where it refuses, and ServerAway where it
    cannot be reached within `patience_s`.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        patience_s: float = PATIENCE_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._patience_s = patience_s
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            address = httpx.URL(self._url)
            self._http = httpx.Client(
                base_url=address,
                headers=headers,
                timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
                transport=transport,
            )
        except UnicodeEncodeError as error:
            raise UserError("the key has characters that no key has") from error
        except httpx.InvalidURL as error:
            raise UserError(f"{self._url!r} is not a server's address: {error}") from error
        if address.scheme not in ("http", "https") or not address.host:
            raise UserError(f"{self._url!r} is not a server's address, such as http://127.0.0.1:8800")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """What the server answers to a query."""
        return self._repeated(lambda: self._json(self._http.get(path, params=query)))

    def post(self, path: str, body: dict[str, Any] | None = None, *, repeat: bool = False) -> Any:
        """What the server answers to a command; sent again after it may have arrived only if `repeat`."""
        return self._repeated(lambda: self._json(self._http.post(path, json=body)), after_sending=repeat)

    def send_file(self, path: str, options: dict[str, Any], file: Path) -> Any:
        """What the server answers to a file and what is asked of it. Repeating it makes no second job."""
        headers = {"Idempotency-Key": secrets.token_hex(16)}

        def send() -> Any:
            with file.open("rb") as opened:
                parts: dict[str, tuple[str | None, IO[bytes] | str, str]] = {
                    "job": (None, json.dumps(options), "application/json"),
                    "file": (file.name, opened, "application/octet-stream"),
                }
                return self._json(self._http.post(path, files=parts, headers=headers))

        return self._repeated(send)

    def save(
        self, path: str, query: dict[str, str], take: Callable[[Iterator[bytes], bool], _Answer]
    ) -> _Answer:
        """Give a download to `take`: its blocks, and whether it is complete. Repeated from the start."""

        def fetch() -> _Answer:
            with self._http.stream("GET", path, params=query) as response:
                if response.status_code != 200:
                    response.read()
                    self._json(response)
                complete = response.headers.get("X-Gristmill-Complete") != "false"
                return take(response.iter_bytes(READ_BYTES), complete)

        return self._repeated(fetch)

    def _repeated(self, call: Callable[[], _Answer], *, after_sending: bool = True) -> _Answer:
        end = time.monotonic() + self._patience_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                with self._named_failures():
                    return call()
            except ServerAway as error:
                was_sent = not isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
                if (was_sent and not after_sending) or time.monotonic() + pause_s >= end:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise ServerAway(
                f"no server at {self._url} ({error}). Start one with `gristmill up`, "
                "or say where it is: --server or GRISTMILL_SERVER_URL."
            ) from error
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise ServerAway(f"the server at {self._url} did not answer: {what}") from error

    def _json(self, response: httpx.Response) -> Any:
        """The answer's JSON, or the error that it carries."""
        try:
            body = response.json() if response.content else None
        except ValueError:
            body = None
        if response.is_success:
            return body
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            error = {"message": f"{self._url} answered {response.status_code}; is it a Gristmill server?"}
        message, code, param = str(error.get("message")), error.get("code"), error.get("param")
        if response.status_code in AWAY:
            raise ServerAway(message)
        if response.status_code == 401:
            message = f"{message} Give one with --key or GRISTMILL_API_KEY."
        raise UserError(message, code=str(code or "invalid_request"), param=param)
