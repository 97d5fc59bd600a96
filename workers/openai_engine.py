"""An engine behind a URL: any OpenAI-compatible server."""

import asyncio
from http import HTTPStatus
from typing import Any

import httpx
import msgspec

from config.catalogue import ModelEntry
from tasks.backoff import backoff_s, jittered
from tasks.errors import error_body
from workers.engine import (
    EngineAnswer,
    EngineCapacity,
    EngineFigures,
    EngineRequest,
    EngineStartFailed,
    EngineUnavailable,
)

DEFAULT_IN_FLIGHT = 128
DEFAULT_CAPACITY_TOKENS = 10_000_000

ATTEMPTS = 5
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 20.0

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 3600.0
"""A busy server may hold a long generation this long before we give up on it."""

_TRY_AGAIN = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""The server's trouble, not the request's. A 500 may be either, so it is tried again too, but in the end it
is that request's answer."""


def _tokens(figures: object, name: str) -> int:
    """A count in a server's usage; 0 when it is not there or is none."""
    value = figures.get(name) if isinstance(figures, dict) else None
    return value if type(value) is int and value >= 0 else 0


class OpenAIEngine:
    """Sends each request to a server, under the model's name there."""

    def __init__(self, name: str, entry: ModelEntry) -> None:
        assert entry.base_url is not None
        self._name = name
        self._remote_name = entry.source
        # Request urls carry the /v1 that a base URL ends with.
        self._base_url = entry.base_url.rstrip("/").removesuffix("/v1")
        self._headers = (
            {"authorization": f"Bearer {entry.api_key.get_secret_value()}"} if entry.api_key else {}
        )
        self._client: httpx.AsyncClient | None = None
        self._running = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0

    async def start(self) -> EngineCapacity:
        """Connect, and see that the server has the model.

        Raises:
            EngineStartFailed: the server cannot be reached, refuses the key, or lacks the model.
        """
        self._client = httpx.AsyncClient(
            base_url=self._base_url,
            headers=self._headers,
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=DEFAULT_IN_FLIGHT),
        )
        try:
            response = await self._client.get("/v1/models", timeout=CONNECT_TIMEOUT_S)
            response.raise_for_status()
            served = [str(model["id"]) for model in response.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise EngineStartFailed(f"{self._base_url}/v1/models: {error!r}") from error
        if self._remote_name not in served:
            raise EngineStartFailed(
                f"{self._base_url} serves {', '.join(served) or 'nothing'}, not {self._remote_name!r}"
            )
        return EngineCapacity(DEFAULT_IN_FLIGHT, DEFAULT_CAPACITY_TOKENS)

    async def run(self, request: EngineRequest) -> EngineAnswer:
        """Post the request; try again with growing pauses while the server is in trouble.

        Raises:
            EngineUnavailable: it still is after `ATTEMPTS` tries.
        """
        assert self._client is not None
        try:
            body: dict[str, Any] = {**msgspec.json.decode(request.body), "model": self._remote_name}
        except msgspec.MsgspecError as error:
            refusal = error_body(f"The body cannot be read: {error}.", kind="invalid_request_error", code=400)
            return EngineAnswer(400, msgspec.json.encode(refusal))
        content = msgspec.json.encode(body)
        headers = {"content-type": "application/json", "x-request-id": request.id}
        self._running += 1
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    response = await self._client.post(request.endpoint, content=content, headers=headers)
                except httpx.TransportError as error:
                    trouble = repr(error)
                else:
                    failed = response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
                    if response.status_code not in _TRY_AGAIN and not (failed and attempt < ATTEMPTS):
                        return self._answer(response)
                    trouble = f"status {response.status_code}"
                if attempt < ATTEMPTS:
                    await asyncio.sleep(jittered(backoff_s(attempt, FIRST_BACKOFF_S, LONGEST_BACKOFF_S)))
            raise EngineUnavailable(f"{self._base_url}{request.endpoint}: {trouble}, {ATTEMPTS} times")
        finally:
            self._running -= 1

    def _answer(self, response: httpx.Response) -> EngineAnswer:
        try:
            body = msgspec.json.decode(response.content)
        except msgspec.MsgspecError as error:
            if response.is_success:
                raise EngineUnavailable(f"{self._base_url} answers without JSON") from error
            # A proxy's page: its status is the answer, its markup is not.
            message = f"{self._base_url} answered {response.status_code} {response.reason_phrase}."
            refusal = error_body(message, kind="invalid_request_error", code=response.status_code)
            return EngineAnswer(response.status_code, msgspec.json.encode(refusal))
        usage = body.get("usage") if isinstance(body, dict) else None
        if not isinstance(usage, dict):
            return EngineAnswer(response.status_code, response.content)
        # Chat says prompt and completion, responses say input and output.
        input_tokens = _tokens(usage, "prompt_tokens") or _tokens(usage, "input_tokens")
        output_tokens = _tokens(usage, "completion_tokens") or _tokens(usage, "output_tokens")
        details_in = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        details_out = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
        self._prompt_tokens += input_tokens
        self._generation_tokens += output_tokens
        return EngineAnswer(
            response.status_code,
            response.content,
            input_tokens,
            output_tokens,
            cached_tokens=_tokens(details_in, "cached_tokens"),
            reasoning_tokens=_tokens(details_out, "reasoning_tokens"),
        )

    async def set_priority(self, request_id: str, priority: int) -> None:
        """OpenAI's API has no such call: the request keeps the priority it was sent with."""

    def figures(self) -> EngineFigures:
        """What this worker sent and got; the server may serve others too."""
        return EngineFigures(
            running_requests=self._running,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
