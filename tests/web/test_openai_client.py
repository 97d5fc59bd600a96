"""The official client, unchanged, against a whole server of real processes."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from tasks.tables import FINAL_STATUSES, Role
from tests.live import LiveMill, live_mill
from tests.waiting import eventually

ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMill]:
    with live_mill(tmp_path_factory.mktemp("live"), sync_timeout_s=5) as running:
        yield running


@pytest.fixture(scope="module")
def client(mill: LiveMill) -> OpenAI:
    return OpenAI(base_url=f"{mill.url}/v1", api_key=mill.key(Role.SUBMIT), max_retries=0)


def lines(count: int, model: str = "fast", text: str = "Hello") -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": ENDPOINT,
                "body": {"model": model, "messages": [{"role": "user", "content": f"{text} {number}"}]},
            }
        ).encode()
        + b"\n"
        for number in range(count)
    )


def submit(client: OpenAI, content: bytes, **asked: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        **{"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h", **asked}
    )


def when(client: OpenAI, batch: Batch, holds: Callable[[Batch], bool]) -> Batch:
    seen = [batch]

    def look() -> bool:
        seen[0] = client.batches.retrieve(batch.id)
        return holds(seen[0])

    eventually(look)
    return seen[0]


def ended(batch: Batch) -> bool:
    return batch.status in FINAL_STATUSES


def test_a_batch_from_upload_to_results(client: OpenAI) -> None:
    content = lines(40)
    file = client.files.create(
        file=("ins/été.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 7_200},
    )
    assert (file.bytes, file.filename, file.purpose) == (len(content), "été.jsonl", "batch")
    assert file.expires_at == file.created_at + 7_200
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content

    batch = client.batches.create(
        input_file_id=file.id,
        endpoint=ENDPOINT,
        completion_window="24h",
        metadata={"team": "Müller & Söhne"},
        output_expires_after={"anchor": "created_at", "seconds": 3_600},
    )
    assert batch.status == "validating"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 0, "completed": 0, "failed": 0}
    assert (batch.output_file_id, batch.error_file_id, batch.errors) == (None, None, None)
    assert (batch.metadata, batch.completion_window) == ({"team": "Müller & Söhne"}, "24h")
    assert batch.expires_at == batch.created_at + 86_400

    batch = when(client, batch, ended)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
    assert batch.model == "fast"
    assert batch.error_file_id is None
    assert batch.output_file_id is not None
    assert batch.usage is not None
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output"
    assert output.expires_at == output.created_at + 3_600
    raw = client.files.with_raw_response.content(batch.output_file_id)
    assert raw.headers["x-gristmill-complete"] == "true"
    assert int(raw.headers["content-length"]) == output.bytes == len(raw.content)
    answers = [json.loads(line) for line in raw.content.splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"r{number}" for number in range(40)]
    assert {answer["response"]["status_code"] for answer in answers} == {200}
    assert {answer["error"] for answer in answers} == {None}

    client.files.delete(batch.output_file_id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(batch.output_file_id)
    assert client.batches.retrieve(batch.id).output_file_id == batch.output_file_id


def test_refused_requests_are_in_the_error_file_of_a_completed_batch(client: OpenAI) -> None:
    batch = when(client, submit(client, lines(3, text="SIMULATE-ERROR")), ended)
    assert batch.status == "completed"
    assert batch.output_file_id is None
    assert batch.error_file_id is not None
    (first, *_) = client.files.content(batch.error_file_id).text.splitlines()
    line = json.loads(first)
    assert line["error"] is None
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["message"]


def test_a_bad_file_uploads_and_fails_its_batch_with_every_fault(client: OpenAI) -> None:
    content = lines(1) + b"{broken\n" + lines(1)
    batch = when(client, submit(client, content), ended)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    faults = [(fault.code, fault.line) for fault in batch.errors.data]
    assert faults == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 0, "completed": 0, "failed": 0}


def test_lists_page_by_themselves_without_loss_or_repeat(mill: LiveMill) -> None:
    own = OpenAI(base_url=f"{mill.url}/v1", api_key=mill.key(Role.SUBMIT, tenant="pages"), max_retries=0)
    file = own.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    made = [
        own.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h").id
        for _ in range(25)
    ]
    first = own.batches.list(limit=10)
    assert len(first.data) == 10
    assert first.has_more
    listed = [batch.id for batch in own.batches.list(limit=10)]
    assert listed == made[::-1]
    assert own.batches.list(limit=10, after=listed[-1]).data == []

    files = [own.files.create(file=(f"{number}.txt", b"x"), purpose="user_data").id for number in range(5)]
    assert [item.id for item in own.files.list(purpose="user_data", order="asc", limit=2)] == files
    assert [item.id for item in own.files.list(purpose="user_data", limit=2)] == files[::-1]


def test_results_are_read_while_the_batch_runs_and_kept_when_it_is_cancelled(client: OpenAI) -> None:
    batch = submit(client, lines(400, "slow"))
    batch = when(client, batch, lambda now: now.output_file_id is not None)
    assert batch.status == "in_progress"
    assert batch.output_file_id is not None
    growing = client.files.with_raw_response.content(batch.output_file_id)
    assert growing.headers["x-gristmill-complete"] == "false"
    seen = [json.loads(line)["custom_id"] for line in growing.content.splitlines()]
    assert seen
    assert client.files.retrieve(batch.output_file_id).bytes > 0
    with pytest.raises(openai.ConflictError):
        client.files.delete(batch.output_file_id)

    assert client.batches.cancel(batch.id).status == "cancelling"
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = when(client, batch, ended)
    assert batch.status == "cancelled"
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert counts.completed + counts.failed == counts.total == 400
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    kept = client.files.content(batch.output_file_id).text.splitlines()
    assert len(kept) == counts.completed >= len(seen)
    others = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert len(others) == counts.failed
    assert {line["error"]["code"] for line in others} == {"batch_cancelled"}
    assert {line["response"] for line in others} == {None}
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_an_input_may_go_while_its_batch_runs(client: OpenAI) -> None:
    batch = submit(client, lines(30, "slow"))
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.input_file_id)
    batch = when(client, batch, ended)
    assert batch.status == "completed"


def test_one_request_is_answered_in_place(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="fast", messages=[{"role": "user", "content": "Hi"}])
    assert answer.choices[0].message.content
    assert client.completions.create(model="fast", prompt="Hi").choices
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="fast", messages=[{"role": "user", "content": "SIMULATE-ERROR"}])
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody", messages=[])
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.chat.completions.create(model="fast", messages=[], stream=True)
    # None of them is a batch.
    assert all(batch.model != "nobody" for batch in client.batches.list(limit=100))


def test_a_request_without_an_answer_in_time_is_a_504_and_cancelled(client: OpenAI) -> None:
    # Nobody serves this model.
    begun = time.monotonic()
    with pytest.raises(openai.InternalServerError, match="No worker serves") as late:
        client.with_options(max_retries=2).embeddings.create(model="tiny-embed", input="x")
    assert late.value.status_code == 504
    assert time.monotonic() - begun < 10, "it must not be asked again by the client itself"


def test_an_upload_in_parts_becomes_a_file(client: OpenAI) -> None:
    content = lines(500)
    file = client.uploads.upload_file_chunked(
        file=content,
        filename="parts.jsonl",
        bytes=len(content),
        mime_type="application/jsonl",
        purpose="batch",
        part_size=16_384,
    ).file
    assert file is not None
    assert client.files.content(file.id).content == content
    upload = client.uploads.create(filename="x", bytes=1, mime_type="application/jsonl", purpose="batch")
    assert client.uploads.cancel(upload.id).status == "cancelled"


def test_models_are_listed_and_shown_by_names_with_slashes(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert "fast" in names
    with_slash = next(name for name in names if "/" in name)
    assert client.models.retrieve(with_slash).id == with_slash
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody/none")


def test_the_same_idempotency_key_makes_one_batch(client: OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    headers = {"Idempotency-Key": "night-run-1"}
    asked: dict[str, Any] = {
        "input_file_id": file.id,
        "endpoint": ENDPOINT,
        "completion_window": "24h",
        "extra_headers": headers,
    }
    batch = client.batches.create(**asked)
    assert client.batches.create(**asked).id == batch.id
    with pytest.raises(openai.ConflictError) as reused:
        client.batches.create(**{**asked, "metadata": {"other": "body"}})
    assert reused.value.code == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("call", "error", "param"),
    [
        (lambda c: c.files.create(file=b"x", purpose="secrets"), openai.BadRequestError, "purpose"),
        (lambda c: c.files.retrieve("file-none"), openai.NotFoundError, "id"),
        (lambda c: c.files.content("file-none"), openai.NotFoundError, "id"),
        (lambda c: c.files.delete("file-none"), openai.NotFoundError, "id"),
        (lambda c: c.files.list(after="file-none").data, openai.BadRequestError, "after"),
        (lambda c: c.files.list(limit=10_001).data, openai.BadRequestError, "limit"),
        (lambda c: c.files.list(order="up").data, openai.BadRequestError, "order"),
        (lambda c: c.batches.retrieve("batch_none"), openai.NotFoundError, "id"),
        (lambda c: c.batches.cancel("batch_none"), openai.NotFoundError, "id"),
        (lambda c: c.batches.list(after="batch_none").data, openai.BadRequestError, "after"),
        (lambda c: c.batches.list(limit=0).data, openai.BadRequestError, "limit"),
        (lambda c: c.batches.list(limit=-1).data, openai.BadRequestError, "limit"),
        (lambda c: c.batches.list(limit=101).data, openai.BadRequestError, "limit"),
        (lambda c: c.batches.list(limit="abc").data, openai.BadRequestError, "limit"),
        (lambda c: submit(c, lines(1), endpoint="/v1/images"), openai.BadRequestError, "endpoint"),
        (
            lambda c: submit(c, lines(1), completion_window="soon"),
            openai.BadRequestError,
            "completion_window",
        ),
        (lambda c: submit(c, lines(1), input_file_id="file-none"), openai.NotFoundError, "input_file_id"),
        (lambda c: submit(c, lines(1), metadata={"k" * 65: ""}), openai.BadRequestError, "metadata"),
        (lambda c: submit(c, lines(1), metadata={"k": "v" * 513}), openai.BadRequestError, "metadata"),
        (
            lambda c: submit(c, lines(1), metadata={str(n): "" for n in range(17)}),
            openai.BadRequestError,
            "metadata",
        ),
        (
            lambda c: submit(c, lines(1), output_expires_after={"anchor": "created_at", "seconds": 1}),
            openai.BadRequestError,
            "output_expires_after",
        ),
        (lambda c: submit(c, lines(1), extra_body={"priority": "now"}), openai.BadRequestError, "priority"),
        (lambda c: submit(c, lines(1), extra_body={"deadline": 1}), openai.BadRequestError, "deadline"),
        (lambda c: submit(c, lines(1), extra_body={"colour": "red"}), openai.BadRequestError, "colour"),
    ],
)
def test_every_wrong_call_is_named(
    client: OpenAI, call: Callable[[OpenAI], Any], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as caught:
        call(client)
    assert caught.value.type == "invalid_request_error"
    assert (caught.value.param or "").split(".")[0] == param
    assert caught.value.request_id
    body = caught.value.body
    assert isinstance(body, dict)
    assert set(body) == {"message", "type", "param", "code"}


def test_errors_outside_of_any_route_have_the_envelope_too(mill: LiveMill) -> None:
    headers = {"Authorization": f"Bearer {mill.key()}"}
    for answer, status in (
        (httpx.get(f"{mill.url}/v1/nothing", headers=headers), 404),
        (httpx.put(f"{mill.url}/v1/batches", headers=headers), 405),
        (httpx.post(f"{mill.url}/v1/batches", headers=headers, content=b"a=b"), 415),
        (httpx.post(f"{mill.url}/v1/batches", headers=headers, json=[]), 400),
        (httpx.get(f"{mill.url}/v1/batches"), 401),
        (httpx.get(f"{mill.url}/v1/batches", headers={"Authorization": "Bearer gm-wrong"}), 401),
    ):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"].startswith("req_")


def test_work_stays_out_of_another_tenants_sight_and_readers_hands(mill: LiveMill, client: OpenAI) -> None:
    batch = submit(client, lines(1))
    stranger = OpenAI(base_url=f"{mill.url}/v1", api_key=mill.key(tenant="stranger"), max_retries=0)
    for call in (
        lambda: stranger.batches.retrieve(batch.id),
        lambda: stranger.batches.cancel(batch.id),
        lambda: stranger.files.retrieve(batch.input_file_id),
        lambda: stranger.files.content(batch.input_file_id),
        lambda: stranger.files.delete(batch.input_file_id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    with pytest.raises(openai.BadRequestError):
        _ = stranger.batches.list(after=batch.id).data
    assert stranger.batches.list().data == []
    reader = OpenAI(base_url=f"{mill.url}/v1", api_key=mill.key(Role.READ), max_retries=0)
    assert reader.batches.retrieve(batch.id).id == batch.id
    with pytest.raises(openai.PermissionDeniedError):
        reader.batches.cancel(batch.id)


def test_an_upload_whose_client_goes_away_leaves_nothing(mill: LiveMill) -> None:
    folder = mill.settings.data_dir / "storage"
    before = set(folder.rglob("*"))

    def arrived() -> bool:
        return any(path.is_file() and path.stat().st_size for path in set(folder.rglob("*")) - before)

    address = httpx.URL(mill.url)
    with socket.create_connection((address.host, address.port or 80), timeout=20) as connection:
        head = (
            f"POST /v1/files HTTP/1.1\r\nHost: {address.host}\r\nAuthorization: Bearer {mill.key()}\r\n"
            "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 90000000\r\n\r\n"
            '--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        )
        connection.sendall(head.encode() + lines(1) * 200_000)
        eventually(arrived, "the first bytes of the file in storage")
    eventually(lambda: set(folder.rglob("*")) <= before, "an empty storage")


def test_uploads_of_a_path_keep_only_the_name(client: OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(lines(1))
    assert client.files.create(file=path, purpose="batch").filename == "prompts.jsonl"
