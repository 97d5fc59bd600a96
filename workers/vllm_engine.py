"""vLLM in this process, answering through vLLM's own OpenAI layer.

Wired as vLLM's batch runner does it (vllm/entrypoints/launchers/run_batch.py): an argument namespace makes
an AsyncLLM, `init_app_state` builds the serving objects on it, and those are called directly. So chat
templates, tools, structured output, logprobs and every error are what `vllm serve` would answer.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import structlog

from config.catalogue import BUILTIN_TINY, ModelEntry
from tasks.errors import error_body
from workers.devices import Accelerator, detect_accelerator, engine_environment, pin
from workers.engine import (
    EngineAnswer,
    EngineCapacity,
    EngineDead,
    EngineFigures,
    EngineRequest,
    EngineStartFailed,
)
from workers.orphan_guard import ENGINE_OWNER_VARIABLE
from workers.vllm_priority import update_priority

log = structlog.get_logger()

Handler = tuple[Callable[[dict[str, Any]], Any], Callable[[Any], Awaitable[Any]]]
"""How an endpoint's body is parsed, and what answers it."""

CPU_ENGINE_ARGS: dict[str, Any] = {
    "enforce_eager": True,
    # A prompt that is prefilled in pieces ends vLLM 0.32 on a CPU when its request has a seed
    # ("CPU Generator does not use offset").
    "enable_chunked_prefill": False,
}
"""Defaults without a GPU; a catalogue entry's own arguments come first."""

WARM_UP_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}

FILLINGS = 2
"""How often the requests that are in the engine could fill its seats. With one filling the seats of a batch
that ends together stay empty until its answers are built and the next requests are rendered."""

DEFAULT_CAPACITY_TOKENS = 1_000_000
"""When vLLM does not say how large its KV cache is."""


def command_line(engine_args: dict[str, Any]) -> list[str]:
    """Engine arguments by their Python names, as vLLM's command line spells them."""
    flags: list[str] = []
    for name, value in engine_args.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict | list):
            flags += [f"--{flag}", msgspec.json.encode(value).decode()]
        else:
            flags += [f"--{flag}", str(value)]
    return flags


class VllmEngine:
    """One AsyncLLM and its serving objects."""

    def __init__(self, name: str, entry: ModelEntry, models_folder: str, devices: str | None = None) -> None:
        self._name = name
        self._entry = entry
        self._models_folder = Path(models_folder)
        self._sockets = TemporaryDirectory(prefix="gristmill-vllm-")
        self._handlers: dict[str, Handler] = {}
        self._engine: Any = None
        accelerator, _ = detect_accelerator()
        environment = engine_environment(accelerator, devices, Path(self._sockets.name), os.environ)
        if entry.source == BUILTIN_TINY and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            environment["VLLM_CPU_KVCACHE_SPACE"] = "1"
        environment[ENGINE_OWNER_VARIABLE] = str(os.getpid())
        pin(environment)

    async def start(self) -> EngineCapacity:
        """Build the model if it is the built-in one, start vLLM, answer one request to warm up.

        Raises:
            EngineStartFailed: with vLLM's own message.
        """
        # `close` removes it, and an engine that is started again needs it again.
        Path(self._sockets.name).mkdir(exist_ok=True)
        try:
            source = await asyncio.get_running_loop().run_in_executor(None, self._resolve_source)
            return await self._start(source)
        except SystemExit as error:
            # vLLM's argument parser has said on stderr which argument it refuses.
            raise EngineStartFailed(f"vLLM refuses the engine_args {self._entry.engine_args}") from error
        except (ImportError, OSError, RuntimeError, ValueError, KeyError) as error:
            raise EngineStartFailed(f"{type(error).__name__}: {error}") from error

    def _resolve_source(self) -> str:
        if self._entry.source != BUILTIN_TINY:
            return self._entry.source
        from workers.tiny_model import build_tiny_model

        return str(build_tiny_model(self._models_folder))

    async def _start(self, source: str) -> EngineCapacity:
        from starlette.datastructures import State
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.run_batch import make_arg_parser
        from vllm.usage.usage_lib import UsageContext
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = {
            "model": source,
            "served_model_name": self._name,
            "tensor_parallel_size": self._entry.devices,
            "scheduling_policy": "priority",
            **({"revision": self._entry.revision} if self._entry.revision else {}),
            **({} if detect_accelerator()[0] is Accelerator.CUDA else CPU_ENGINE_ARGS),
            **self._entry.engine_args,
        }
        parser = make_arg_parser(FlexibleArgumentParser())
        namespace = parser.parse_args(["-i", "-", "-o", "-", *command_line(arguments)])
        # Builds its output handler at once, so it must happen on the loop it will live on.
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs.from_cli_args(namespace), usage_context=UsageContext.OPENAI_BATCH_RUNNER
        )
        tasks = await self._engine.get_supported_tasks()
        state = State()
        await init_app_state(self._engine, state, namespace, tasks)
        self._handlers = _handlers(state)
        if "/v1/chat/completions" in self._handlers:
            body = msgspec.json.encode({"model": self._name, **WARM_UP_BODY})
            await self.run(EngineRequest("warm-up", "/v1/chat/completions", body, 0))
        config = self._engine.vllm_config
        blocks = config.cache_config.num_gpu_blocks or 0
        tokens = blocks * config.cache_config.block_size or DEFAULT_CAPACITY_TOKENS
        return EngineCapacity(config.scheduler_config.max_num_seqs * FILLINGS, tokens * FILLINGS)

    async def run(self, request: EngineRequest) -> EngineAnswer:
        """Answer as vLLM's server would.

        Raises:
            EngineDead: an engine process is gone.
        """
        import pydantic
        from vllm.entrypoints.serve import create_error_response
        from vllm.v1.engine.exceptions import EngineDeadError

        handler = self._handlers.get(request.endpoint)
        if handler is None:
            served = ", ".join(self._handlers)
            return _refusal(404, f"The model {self._name!r} serves {served}, not {request.endpoint}.")
        parse, serve = handler
        try:
            body = msgspec.json.decode(request.body)
        except msgspec.MsgspecError as error:
            return _refusal(400, f"The body cannot be read: {error}.")
        # The id is ours so that two lines can never share one; the priority is the job's to say.
        body["request_id"] = request.id
        body["priority"] = request.priority
        try:
            answer = await serve(parse(body))
        except EngineDeadError as error:
            raise EngineDead(str(error)) from error
        except pydantic.ValidationError as error:
            return _refusal(400, _first_messages(error))
        except Exception as error:
            if self._engine.errored:
                raise EngineDead(str(error)) from error
            answer = create_error_response(error)
        return _to_answer(answer)

    async def set_priority(self, request_id: str, priority: int) -> None:
        """Queue the request anew if it waits; a running one goes on with the new priority."""
        await update_priority(self._engine, request_id, priority)

    def figures(self) -> EngineFigures:
        """From vLLM's own metrics."""
        from vllm.v1.metrics.reader import get_metrics_snapshot

        sums: dict[str, float] = {}
        for metric in get_metrics_snapshot():
            if (value := getattr(metric, "value", None)) is not None:
                sums[metric.name] = sums.get(metric.name, 0) + value

        def total(name: str) -> int:
            return int(sums.get(f"vllm:{name}", 0))

        return EngineFigures(
            running_requests=total("num_requests_running"),
            waiting_requests=total("num_requests_waiting"),
            kv_cache_usage=round(sums.get("vllm:kv_cache_usage_perc", 0.0), 4),
            prompt_tokens=total("prompt_tokens"),
            generation_tokens=total("generation_tokens"),
            prefix_cache_queries=total("prefix_cache_queries"),
            prefix_cache_hits=total("prefix_cache_hits"),
            preemptions=total("num_preemptions"),
        )

    async def close(self) -> None:
        """Stop the engine's processes and remove its sockets."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
        self._handlers = {}
        self._sockets.cleanup()


def _handlers(state: Any) -> dict[str, Handler]:
    """Endpoint to handler, for what this engine's model can do."""
    from pydantic import TypeAdapter
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest

    chat = getattr(state, "openai_serving_chat", None)
    completion = getattr(state, "openai_serving_completion", None)
    responses = getattr(state, "openai_serving_responses", None)
    embedding = getattr(state, "serving_embedding", None)
    scores = getattr(state, "serving_scores", None)
    handlers: dict[str, Handler] = {}
    if chat is not None:
        handlers["/v1/chat/completions"] = (
            ChatCompletionRequest.model_validate,
            chat.create_chat_completion,
        )
    if completion is not None:
        handlers["/v1/completions"] = (CompletionRequest.model_validate, completion.create_completion)
    if responses is not None:
        handlers["/v1/responses"] = (ResponsesRequest.model_validate, responses.create_responses)
    if embedding is not None:
        handlers["/v1/embeddings"] = (TypeAdapter(EmbeddingRequest).validate_python, embedding)
    if scores is not None:
        handlers["/v1/score"] = (TypeAdapter(ScoreRequest).validate_python, scores)
        handlers["/v1/rerank"] = (RerankRequest.model_validate, scores)
    return handlers


def _to_answer(answer: Any) -> EngineAnswer:
    from starlette.responses import Response
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse

    if isinstance(answer, ErrorResponse):
        return EngineAnswer(answer.error.code, answer.model_dump_json().encode())
    if isinstance(answer, Response):
        body = bytes(answer.body)
        decoded = msgspec.json.decode(body)
        usage = decoded.get("usage") or {} if isinstance(decoded, dict) else {}
        return EngineAnswer(answer.status_code, body, usage.get("prompt_tokens") or 0)
    usage = getattr(answer, "usage", None)
    body = answer.model_dump_json().encode()
    if usage is None:
        return EngineAnswer(200, body)
    # Chat and completions say prompt and completion, responses say input and output.
    details = getattr(usage, "prompt_tokens_details", None) or getattr(usage, "input_tokens_details", None)
    out_details = getattr(usage, "output_tokens_details", None)
    return EngineAnswer(
        200,
        body,
        input_tokens=getattr(usage, "prompt_tokens", None) or getattr(usage, "input_tokens", None) or 0,
        output_tokens=getattr(usage, "completion_tokens", None) or getattr(usage, "output_tokens", None) or 0,
        cached_tokens=getattr(details, "cached_tokens", None) or 0,
        reasoning_tokens=getattr(out_details, "reasoning_tokens", None) or 0,
    )


def _refusal(status: int, message: str) -> EngineAnswer:
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    return EngineAnswer(status, msgspec.json.encode(error_body(message, kind=kind, code=status)))


def _first_messages(error: Any) -> str:
    """A pydantic error as sentences, without the input it quotes."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(str(part) for part in f['loc']) or 'body'}: {f['msg']}" for f in faults[:5])
