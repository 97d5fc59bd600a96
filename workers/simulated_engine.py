"""A simulated engine, for load and fault tests only: no model, programmable latency, errors and death."""

import asyncio

import msgspec
import structlog

from config.catalogue import ModelEntry
from tasks.errors import error_body
from workers.engine import EngineAnswer, EngineCapacity, EngineDead, EngineFigures, EngineRequest

log = structlog.get_logger()

DEFAULT_CAPACITY_REQUESTS = 256
DEFAULT_CAPACITY_TOKENS = 10_000_000


class SimulatedEngine:
    """Answers each request with a fixed text, in the shape of the request's endpoint."""

    def __init__(self, name: str, entry: ModelEntry) -> None:
        self._name = name
        self._spec = entry.simulation
        self._error_marker = entry.simulation.error_marker.encode()
        self._death_marker = entry.simulation.death_marker.encode()
        self._dead = False
        self._running = 0
        self._answered = 0

    async def start(self) -> EngineCapacity:
        """Ready at once; what died before lives again."""
        self._dead = False
        return EngineCapacity(DEFAULT_CAPACITY_REQUESTS, DEFAULT_CAPACITY_TOKENS)

    async def run(self, request: EngineRequest) -> EngineAnswer:
        """Wait the programmed latency, then answer, refuse or die as the body's markers say."""
        if self._spec.log_requests:
            log.info("simulated_request", request=request.id)
        self._running += 1
        try:
            if self._spec.latency_s:
                await asyncio.sleep(self._spec.latency_s)
        finally:
            self._running -= 1
        if self._death_marker in request.body:
            self._dead = True
        if self._dead:
            raise EngineDead("the simulated engine died")
        self._answered += 1
        if self._error_marker in request.body:
            refusal = error_body("Refused by the simulated engine.", kind="invalid_request_error", code=400)
            return EngineAnswer(400, msgspec.json.encode(refusal))
        output_tokens = self._spec.output_tokens
        input_tokens = len(request.body) // 4
        return EngineAnswer(
            200, self._body(request, input_tokens, output_tokens), input_tokens, output_tokens
        )

    async def set_priority(self, request_id: str, priority: int) -> None:
        """No queue, so nothing to change."""

    def figures(self) -> EngineFigures:
        """Requests in the engine, and tokens claimed so far."""
        return EngineFigures(
            running_requests=self._running, generation_tokens=self._answered * self._spec.output_tokens
        )

    async def close(self) -> None:
        """Nothing to free."""

    def _body(self, request: EngineRequest, input_tokens: int, output_tokens: int) -> bytes:
        text = "simulated answer"
        if request.endpoint == "/v1/chat/completions":
            choice: dict[str, object] = {"message": {"role": "assistant", "content": text}}
        else:
            choice = {"text": text}
        return msgspec.json.encode(
            {
                "id": request.id,
                "object": "simulated",
                "model": self._name,
                "choices": [{"index": 0, **choice, "finish_reason": "stop"}],
                "usage": {
                    "prompt_tokens": input_tokens,
                    "completion_tokens": output_tokens,
                    "total_tokens": input_tokens + output_tokens,
                },
            }
        )
