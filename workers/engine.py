"""What a worker needs of an engine: the protocol that vLLM, remote servers and the simulation implement."""

from dataclasses import dataclass
from typing import Protocol

from tasks.errors import MachineError

EXIT_ENGINE_DID_NOT_START = 3
"""Exit status of a worker whose engine did not start."""


class EngineDead(MachineError):
    """The engine is gone; whatever was in it has to run again on a new one."""


class EngineUnavailable(MachineError):
    """The engine cannot take or finish requests now, but is not known to be broken."""


class EngineStartFailed(MachineError):
    """The engine did not start; the message says why in the engine's own words."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request on its way into an engine."""

    id: str
    """Unique in this engine; appears in its log."""
    endpoint: str
    body: bytes
    """JSON object."""
    priority: int
    """0 first, as in vLLM."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What an OpenAI-compatible server would answer."""

    status_code: int
    body: bytes
    """UTF-8 JSON."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class EngineCapacity:
    """How much an engine should hold at a time so that it never runs dry."""

    requests: int
    tokens: int


@dataclass(frozen=True)
class EngineFigures:
    """What an engine says of itself. Counters only grow while it lives."""

    running_requests: int = 0
    waiting_requests: int = 0
    kv_cache_usage: float = 0.0
    """Share of the KV cache in use, 0 to 1."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int = 0
    """Prompt tokens found there."""
    preemptions: int = 0


class Engine(Protocol):
    """One engine. Its coroutines run on one event loop; `figures` may be called from any thread."""

    async def start(self) -> EngineCapacity:
        """Load the model and get ready; also once more, after `close`.

        Raises:
            EngineStartFailed: with the engine's own message.
        """
        ...

    async def run(self, request: EngineRequest) -> EngineAnswer:
        """Answer one request; a refusal is an answer. Cancelling the awaiting task aborts it in the engine.

        Raises:
            EngineDead: the engine is gone.
            EngineUnavailable: the engine cannot answer now.
        """
        ...

    async def set_priority(self, request_id: str, priority: int) -> None:
        """Change the priority of a request that is in the engine; one that is not there is fine."""
        ...

    def figures(self) -> EngineFigures:
        """The present figures."""
        ...

    async def close(self) -> None:
        """Stop and free the devices; safe to call on an engine that did not start."""
        ...
