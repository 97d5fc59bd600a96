"""The models this deployment serves: what each is called, where it comes from and which engine runs it."""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

BUILTIN_TINY = "builtin:tiny"
"""Source of the random-weight model that Gristmill builds itself; it needs no hub."""

DEFAULT_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
FALLBACK_MODEL = "tiny"
"""Served when the default model was not chosen by anyone and cannot be fetched."""


POOLING_ENDPOINTS = frozenset({"/v1/embeddings", "/v1/score", "/v1/rerank"})
"""Endpoints of models that do not generate text."""


class EngineKind(StrEnum):
    """Which implementation of the engine protocol runs a model."""

    VLLM = "vllm"
    OPENAI = "openai"
    SIMULATED = "simulated"


class Simulation(BaseModel):
    """How the simulated engine behaves. For load and fault tests only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    latency_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds each request takes."""
    output_tokens: Annotated[int, Field(ge=0)] = 16
    """Tokens each answer claims to have."""
    error_marker: str = "SIMULATE-ERROR"
    """A body that contains it is refused with status 400."""
    death_marker: str = "SIMULATE-DEATH"
    """A body that contains it takes the engine with it."""
    log_requests: bool = False
    """Log the id of every request as it enters the engine."""


class ModelEntry(BaseModel):
    """One served model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    """Hub name, local folder, `builtin:tiny`, or the model's name on a remote server."""
    revision: str | None = None
    """Commit, tag or branch on the hub."""
    engine: EngineKind = EngineKind.VLLM
    engine_args: dict[str, Any] = {}
    """vLLM engine arguments by their Python names, for example `max_model_len = 4096`."""
    base_url: str | None = None
    """`openai` engine: the server's address up to and including `/v1`."""
    api_key: SecretStr | None = None
    """`openai` engine: bearer token for the server."""
    devices: Annotated[int, Field(ge=1)] = 1
    """Devices one engine takes (its tensor-parallel size)."""
    max_in_flight: Annotated[int, Field(ge=1)] | None = None
    """Requests one worker holds in its engine; unset: from the engine's own limits."""
    max_tokens_in_flight: Annotated[int, Field(ge=1)] | None = None
    """Estimated tokens one worker holds in its engine; unset: from the size of the KV cache."""
    simulation: Simulation = Simulation()

    @model_validator(mode="after")
    def _fields_fit_the_engine(self) -> Self:
        if self.engine is EngineKind.OPENAI and not self.base_url:
            raise ValueError("engine 'openai' needs base_url, for example http://127.0.0.1:8000/v1")
        if self.engine is not EngineKind.OPENAI and (self.base_url or self.api_key):
            raise ValueError("base_url and api_key belong to engine 'openai'")
        if self.engine is not EngineKind.VLLM and self.engine_args:
            raise ValueError("engine_args belong to engine 'vllm'")
        return self

    def serves(self, endpoint: str) -> bool:
        """Whether requests to this endpoint can succeed, as far as the entry says."""
        match self.engine_args.get("runner"):
            case "pooling":
                return endpoint in POOLING_ENDPOINTS
            case "generate":
                return endpoint not in POOLING_ENDPOINTS
        return True


BUILTIN_MODELS: dict[str, ModelEntry] = {
    DEFAULT_MODEL: ModelEntry(source=DEFAULT_MODEL, engine_args={"max_model_len": 4096}),
    # In float32, because vLLM's bfloat16 kernels stop some processors with an illegal instruction.
    "tiny": ModelEntry(
        source=BUILTIN_TINY,
        engine_args={
            "max_model_len": 2048,
            "dtype": "float32",
            "runner": "generate",
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
        },
    ),
    "tiny-embed": ModelEntry(
        source=BUILTIN_TINY,
        engine_args={"max_model_len": 2048, "dtype": "float32", "runner": "pooling", "convert": "embed"},
    ),
}
"""Always in the catalogue, unless the settings name a model of the same name."""


def is_hub_name_or_folder(name: str) -> bool:
    """Whether a model that is not in the catalogue can be served by its own name."""
    return "/" in name
