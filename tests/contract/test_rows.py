"""Jobs from rows: from a table to the requests of a job."""

import json
from typing import Any

import pytest

from tasks.backends import Backends
from tasks.check import check_input
from tasks.errors import UserError
from tasks.file_sink import store_file
from tasks.jobs import get_job
from tasks.prompts import prompt_text, requests_of
from tasks.rows import RowsFormat, RowsSpec, format_of, prompts_as_rows
from tasks.sources import input_of, open_source
from tasks.submission import JobRequest, create_job
from tasks.tables import JobKind
from tests.row_samples import CSV_ROWS, asked, parquet_of, planned, rows_job, run_chunk, spec_of
from tests.samples import (
    ENDPOINT,
    chunks_of,
    results_of,
    with_settings,
)


def test_rows_become_requests_in_their_order(backends: Backends) -> None:
    spec = spec_of(system="Be brief.", id_column="id", body={"max_tokens": 7, "temperature": 0})
    job = rows_job(with_settings(backends, chunk_requests=2), spec=spec)
    assert (job.total, job.model, job.kind) == (3, "sim", JobKind.ROWS)
    assert [chunk.requests for chunk in chunks_of(backends, job.id)] == [2, 1]
    requests = planned(backends, job)
    assert [(request.index, request.custom_id) for request in requests] == [
        (0, "x-1"),
        (1, "x-2"),
        (2, "x-3"),
    ]
    assert json.loads(requests[0].body) == {
        "model": "sim",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Say: Grüße,\nWelt"},
        ],
        "max_tokens": 7,
        "temperature": 0,
    }
    assert job.intake_bytes == len(CSV_ROWS)
    assert job.estimated_tokens == sum(len(request.body) // 4 + 7 for request in requests)


@pytest.mark.parametrize(
    ("endpoint", "system", "expected"),
    [
        ("/v1/completions", None, {"prompt": "Say: a"}),
        ("/v1/embeddings", None, {"input": "Say: a"}),
        ("/v1/responses", None, {"input": "Say: a"}),
        ("/v1/responses", "Be brief.", {"input": "Say: a", "instructions": "Be brief."}),
        ("/v1/chat/completions", None, {"messages": [{"role": "user", "content": "Say: a"}]}),
    ],
)
def test_each_endpoint_gets_the_prompt_where_it_looks_for_it(
    sqlite_backends: Backends, endpoint: str, system: str | None, expected: dict[str, Any]
) -> None:
    job = rows_job(sqlite_backends, b"prose\na\n", spec_of(system=system), endpoint=endpoint)
    (request,) = planned(sqlite_backends, job)
    assert request.custom_id == "row-1"
    assert json.loads(request.body) == {"model": "sim", **expected}
    assert prompt_text(request.body) == "Say: a"


def test_the_claim_is_kept_alive_between_blocks(sqlite_backends: Backends) -> None:
    job = create_job(sqlite_backends, asked(sqlite_backends, b"prose\n" + b"a\n" * 1_000, spec_of()))
    read: list[int] = []
    items = open_source(sqlite_backends, input_of(sqlite_backends.database, job.id), read.append).items()
    assert sum(1 for _ in items) == 1_000
    assert len(read) > 5, "the file is a single block"
    assert sum(read) == 2_006


def test_pasted_prompts_are_rows_too(sqlite_backends: Backends) -> None:
    content = b"".join(prompts_as_rows(["one\nline", "{{ two }}", ""]))
    job = rows_job(sqlite_backends, content, spec_of(RowsFormat.JSONL, "{{ prompt }}"))
    prompts = [prompt_text(request.body) for request in planned(sqlite_backends, job)]
    # What stands in a row is never taken for a template.
    assert prompts == ["one\nline", "{{ two }}", ""]


def test_rows_of_json_lines_and_parquet_are_read_with_their_types(sqlite_backends: Backends) -> None:
    template = "{{ n }} {{ deep.tags | join('+') }}"
    jsonl = b'{"n": 1, "deep": {"tags": ["a", "b"]}}\n{"deep": {"tags": []}, "n": null, "more": 1}\n'
    job = rows_job(sqlite_backends, jsonl, spec_of(RowsFormat.JSONL, template))
    assert [prompt_text(request.body) for request in planned(sqlite_backends, job)] == ["1 a+b", " "]
    parquet = parquet_of({"n": [1, None], "deep": [{"tags": ["a", "b"]}, {"tags": []}]})
    job = rows_job(sqlite_backends, parquet, spec_of(RowsFormat.PARQUET, template, id_column=None))
    assert [prompt_text(request.body) for request in planned(sqlite_backends, job)] == ["1 a+b", " "]
    assert job.intake_bytes == pytest.approx(len(parquet), abs=2)


@pytest.mark.parametrize(
    ("spec", "changes", "param"),
    [
        (spec_of(template="{{ prose"), {}, "template"),
        (spec_of(template="{{ prose() }}"), {}, "template"),
        (spec_of(body={"stream": True}), {}, "settings.stream"),
        (spec_of(body={"messages": []}), {}, "settings.messages"),
        (spec_of(body={"model": "other"}), {}, "settings.model"),
        (spec_of(system="\ud800"), {}, None),
        (spec_of(system="x"), {"endpoint": "/v1/embeddings"}, "system"),
        (spec_of(), {"endpoint": "/v1/rerank"}, "endpoint"),
        (spec_of(), {"endpoint": "/v1/none"}, "endpoint"),
        (spec_of(), {"model": None}, "model"),
        (spec_of(), {"model": "unknown"}, "model"),
        (spec_of(), {"tenant": "stranger"}, "input_file_id"),
    ],
)
def test_what_can_be_known_before_a_row_is_read_is_refused_at_once(
    sqlite_backends: Backends, spec: RowsSpec, changes: dict[str, Any], param: str | None
) -> None:
    request = asked(sqlite_backends, CSV_ROWS, spec, **changes)
    for refuse in (create_job, check_input):
        with pytest.raises(UserError) as caught:
            refuse(sqlite_backends, request)
        assert caught.value.param == param


def test_a_file_of_another_purpose_is_no_input(sqlite_backends: Backends) -> None:
    file = store_file(sqlite_backends, [b"prose\na\n"], filename="in.csv", purpose="batch_output")
    request = JobRequest(
        kind=JobKind.ROWS,
        endpoint=ENDPOINT,
        model="sim",
        input_file_id=file.id,
        options=spec_of().to_options(),
    )
    for refuse in (create_job, check_input):
        with pytest.raises(UserError, match="purpose") as caught:
            refuse(sqlite_backends, request)
        assert caught.value.param == "input_file_id"


def test_requests_of_results_are_read_from_the_plan(backends: Backends) -> None:
    job = rows_job(with_settings(backends, chunk_requests=2))
    for seq in (0, 1):
        run_chunk(backends, job.id, seq)
    results = results_of(backends, job.id)
    found = requests_of(backends, job, results[1:])
    assert {index: prompt_text(request.body) for index, request in found.items()} == {
        1: "Say: zwei",
        2: "Say: drei",
    }
    assert requests_of(backends, job, []) == {}
    assert job.planned_key is not None
    backends.storage.delete(job.planned_key)
    assert requests_of(backends, job, results) == {}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}, "u"),
        (
            {
                "messages": [
                    {"content": [{"type": "text", "text": "a"}, {"type": "image_url"}, {"text": "b"}]}
                ]
            },
            "a\nb",
        ),
        ({"prompt": "p"}, "p"),
        ({"input": ["a", "b"]}, "a\nb"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "t"}]}]}, "t"),
        ({"query": "q", "documents": ["d"]}, "q"),
        ({"text_1": "a", "text_2": "b"}, "a\nb"),
        ({"prompt": [1, 2, 3]}, None),
        ({"messages": []}, None),
        ({"messages": "odd"}, None),
        ({}, None),
    ],
)
def test_the_prompt_of_a_body_is_its_last_text(body: dict[str, Any], text: str | None) -> None:
    assert prompt_text(json.dumps(body).encode()) == text


@pytest.mark.parametrize(
    ("filename", "kind"),
    [
        ("a.csv", "csv"),
        ("A.B.CSV", "csv"),
        ("x.jsonl", "jsonl"),
        ("x.ndjson", "jsonl"),
        ("p.parquet", "parquet"),
    ],
)
def test_the_name_of_a_file_says_its_format(filename: str, kind: str) -> None:
    assert format_of(filename) is RowsFormat(kind)


@pytest.mark.parametrize("filename", ["", "csv", ".csv", "x.xlsx", "x.json", "x.csv.gz"])
def test_a_name_that_says_no_format_is_refused(filename: str) -> None:
    with pytest.raises(UserError, match=r"\.csv, \.jsonl, \.parquet") as caught:
        format_of(filename)
    assert caught.value.param == "format"


def test_a_spec_survives_the_database(backends: Backends) -> None:
    spec = spec_of(system="s", id_column="id", body={"response_format": {"type": "json_object"}, "n": 1})
    job = rows_job(backends, spec=spec)
    assert RowsSpec.from_options(get_job(backends.database, job.id).options) == spec
