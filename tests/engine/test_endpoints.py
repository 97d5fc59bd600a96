"""What each endpoint answers, as vLLM's own server would."""

import json
import math
from typing import Any

import pytest

from tests.engine.conftest import RunningMill

pytestmark = pytest.mark.vllm

HELLO = [{"role": "user", "content": "Say hello."}]
# Short, whatever the random weights say.
SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"],
    "additionalProperties": False,
}


def chat(**body: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 8, "messages": HELLO, **body}


def test_chat_answers_with_choices_usage_and_the_served_name(mill: RunningMill) -> None:
    plain, several, seeded, again = mill.answers(
        "/v1/chat/completions", chat(), chat(n=2), chat(seed=7, temperature=1), chat(seed=7, temperature=1)
    )
    assert plain["body"]["object"] == "chat.completion"
    assert plain["body"]["model"] == "tiny"
    assert 1 <= plain["body"]["usage"]["completion_tokens"] <= 8
    assert len(several["body"]["choices"]) == 2
    texts = [answer["body"]["choices"][0]["message"]["content"] for answer in (seeded, again)]
    assert texts[0] == texts[1]


def test_logprobs_are_finite_numbers(mill: RunningMill) -> None:
    (answer,) = mill.answers("/v1/chat/completions", chat(logprobs=True, top_logprobs=5, top_k=1))
    for token in answer["body"]["choices"][0]["logprobs"]["content"]:
        assert math.isfinite(token["logprob"])
        assert all(math.isfinite(other["logprob"]) for other in token["top_logprobs"])


def test_structured_output_and_tools_are_honoured(mill: RunningMill) -> None:
    function = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
    tool = {"type": "function", "function": function}
    choice = {"type": "function", "function": {"name": "f"}}
    response_format = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    shaped, called = mill.answers(
        "/v1/chat/completions",
        chat(max_tokens=64, temperature=0, response_format=response_format),
        chat(max_tokens=64, temperature=0, tools=[tool], tool_choice=choice),
    )
    assert shaped["status_code"] == 200
    assert json.loads(shaped["body"]["choices"][0]["message"]["content"])["n"] in (1, 2)
    assert called["status_code"] == 200, called
    # The call is forced upon random weights, which seldom end its arguments before their tokens are used up.
    message = called["body"]["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    assert [call["function"]["name"] for call in calls] == ["f"] or message["content"].startswith(
        '<tool_call>{"name": "f", "arguments": {'
    )


def test_completions_and_responses_are_served(mill: RunningMill) -> None:
    (completion,) = mill.answers("/v1/completions", {"model": "tiny", "prompt": "Once", "max_tokens": 4})
    assert completion["body"]["object"] == "text_completion"
    (response,) = mill.answers("/v1/responses", {"model": "tiny", "input": "Once", "max_output_tokens": 4})
    assert response["body"]["object"] == "response"
    assert response["body"]["usage"]["output_tokens"] <= 4


def test_an_endpoint_the_model_lacks_is_refused_line_by_line(mill: RunningMill) -> None:
    (answer,) = mill.answers("/v1/embeddings", {"model": "tiny", "input": "Once"})
    assert answer["status_code"] == 404
    assert "/v1/embeddings" in answer["body"]["error"]["message"]


def test_prompts_with_a_seed_that_do_not_fit_one_batch_leave_the_engine_alive(mill: RunningMill) -> None:
    # vLLM 0.32 on a CPU dies of it when it prefills such prompts in pieces.
    bodies = [{"model": "tiny", "prompt": [100 + n] * 300, "seed": n, "max_tokens": 4} for n in range(40)]
    answers = mill.answers("/v1/completions", *bodies)
    assert [answer["status_code"] for answer in answers] == [200] * 40


def test_two_lines_with_the_same_request_id_do_not_meet(mill: RunningMill) -> None:
    answers = mill.answers("/v1/chat/completions", chat(request_id="same"), chat(request_id="same"))
    assert [answer["status_code"] for answer in answers] == [200, 200]
    assert answers[0]["body"]["id"] != answers[1]["body"]["id"]


def test_a_body_cannot_name_its_own_priority(mill: RunningMill) -> None:
    (answer,) = mill.answers("/v1/chat/completions", chat(priority=-(10**9)))
    assert answer["status_code"] == 200


WINDOW = 512


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "output_tokens"),
    [
        (WINDOW - 12, 12, 12),  # fills the window exactly
        (WINDOW - 12, 13, 12),  # reaches beyond it: cut to the window, as `vllm serve` does
        (WINDOW - 1, 1, 1),
        (WINDOW, 1, None),  # leaves no room for an answer
        (WINDOW + 1, 1, None),
    ],
)
def test_the_window_bounds_prompt_and_output_together(
    mill: RunningMill, prompt_tokens: int, max_tokens: int, output_tokens: int | None
) -> None:
    body = {"model": "tiny", "prompt": [100] * prompt_tokens, "max_tokens": max_tokens, "ignore_eos": True}
    (answer,) = mill.answers("/v1/completions", body)
    if output_tokens is None:
        assert answer["status_code"] == 400
        assert answer["body"]["error"]["message"]
        return
    assert answer["body"]["usage"]["completion_tokens"] == output_tokens
    assert answer["body"]["choices"][0]["finish_reason"] == "length"


def test_embeddings_score_and_rerank_are_served(embedding_mill: RunningMill) -> None:
    (embedded,) = embedding_mill.answers("/v1/embeddings", {"model": "tiny-embed", "input": ["a", "b"]})
    assert [len(item["embedding"]) for item in embedded["body"]["data"]] == [128, 128]
    (scored,) = embedding_mill.answers(
        "/v1/score", {"model": "tiny-embed", "text_1": "a", "text_2": ["b", "c"]}
    )
    assert len(scored["body"]["data"]) == 2
    (ranked,) = embedding_mill.answers(
        "/v1/rerank", {"model": "tiny-embed", "query": "a", "documents": ["b", "c"]}
    )
    assert len(ranked["body"]["results"]) == 2
