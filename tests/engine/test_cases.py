"""Inputs that broke other batch systems: how each of them must end, on a real engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.jobs import get_job
from tasks.tables import ResultSet
from tests.engine.conftest import RunningMill

CASES = Path(__file__).parent.parent / "cases"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "expected.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("name", EXPECTED)
def test_case_ends_as_expected(mill: RunningMill, name: str) -> None:
    expected = EXPECTED[name]
    job = mill.run((CASES / name).read_bytes(), expected["endpoint"])

    wanted_status = {
        "completed-or-failed": ("completed", "failed"),
        "failed-or-error-line": ("completed", "failed"),
    }.get(expected["status"], (expected["status"],))
    assert job.status in wanted_status, job.errors

    faults = job.errors or []
    if "lines" in expected:
        assert sorted({fault["line"] for fault in faults}) == expected["lines"]
    if "code" in expected:
        assert {fault["code"] for fault in faults} == {expected["code"]}

    output = mill.lines(job, ResultSet.OUTPUT)
    errors = mill.lines(job, ResultSet.ERRORS)
    assert len(output) == job.completed
    assert len(errors) == job.failed
    assert job.completed + job.failed == job.total
    if job.status == "failed":
        assert faults
        assert not output
        assert not errors
        return
    succeeded = {line["custom_id"] for line in output}
    refused = {line["custom_id"] for line in errors}
    assert set(expected.get("ok", ())) <= succeeded
    assert set(expected.get("err", ())) <= refused
    assert set(expected.get("either", ())) <= succeeded | refused
    for line in errors:
        assert line["error"] is None
        assert line["response"]["status_code"] >= 400
        assert line["response"]["body"]["error"]["message"]
    for line in output:
        assert line["response"]["body"]["model"] == job.model


def test_duplicate_names_both_lines(mill: RunningMill) -> None:
    job = mill.run((CASES / "F09-duplicate-id.jsonl").read_bytes(), "/v1/chat/completions")
    assert job.errors is not None
    assert [fault["line"] for fault in job.errors] == [3]
    assert "line 1" in job.errors[0]["message"]


def test_every_url_fault_of_a_file_is_listed(mill: RunningMill) -> None:
    job = mill.run((CASES / "F17-url-mismatch.jsonl").read_bytes(), "/v1/chat/completions")
    assert {fault["code"] for fault in job.errors or []} <= {"url_mismatch", "invalid_url"}


def test_ids_and_prompts_beyond_ascii_come_back_unchanged(mill: RunningMill) -> None:
    content = (CASES / "F27-données-日本.jsonl").read_bytes()
    sent = [json.loads(line)["custom_id"] for line in content.splitlines()]
    job = mill.run(content, "/v1/chat/completions")
    assert [line["custom_id"] for line in mill.lines(job, ResultSet.ALL)] == sent


def test_unknown_model_is_named_with_the_line(mill: RunningMill) -> None:
    job = mill.run((CASES / "F16-unknown-model.jsonl").read_bytes(), "/v1/chat/completions")
    assert job.errors is not None
    assert job.errors[0]["code"] == "model_not_found"
    assert "nope" in job.errors[0]["message"]
    assert get_job(mill.backends.database, job.id).model is None
