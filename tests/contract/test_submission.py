"""From a file to a planned job, or to a failed one that says why."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tasks.backends import Backends
from tasks.errors import NotFound, UserError
from tasks.file_sink import store_file
from tasks.intake import run_intake
from tasks.intake_claim import claim_intake, renew_intake
from tasks.jobs import cancel_job, get_job
from tasks.planned_file import PlannedRequest, read_frame
from tasks.storage import StoredObjectMissing
from tasks.submission import JobRequest, create_job, find_resumable, mark_delivered
from tasks.tables import ChunkState, Job, JobStatus, Lane
from tests.samples import (
    ENDPOINT,
    change_job,
    chunks_of,
    good_input,
    request_line,
    submit,
    with_settings,
)

CASES = Path(__file__).parent.parent / "cases"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "expected.json").read_text(encoding="utf-8"))


def planned(backends: Backends, job: Job) -> list[PlannedRequest]:
    assert job.planned_key is not None
    return [
        request
        for chunk in chunks_of(backends, job.id)
        for request in read_frame(backends.storage, job.planned_key, chunk.offset, chunk.length)
    ]


def taken_in(backends: Backends, content: bytes, **request: Any) -> Job:
    job_id = submit(backends, content, **request)
    run_intake(backends, job_id)
    return get_job(backends.database, job_id)


def codes(job: Job) -> list[tuple[str, int | None]]:
    return [(fault["code"], fault["line"]) for fault in job.errors or []]


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"endpoint": "/v1/images"}, "invalid_request", "endpoint"),
        ({"endpoint": "chat"}, "invalid_request", "endpoint"),
        ({"model": "unknown"}, "model_not_found", "model"),
        ({"input_file_id": "file-none"}, "not_found", "input_file_id"),
        # Another tenant's file is no file.
        ({"tenant": "stranger"}, "not_found", "input_file_id"),
    ],
)
def test_a_job_that_cannot_run_is_refused(
    backends: Backends, changes: dict[str, Any], code: str, param: str
) -> None:
    file = store_file(backends, [good_input(1)], filename="in.jsonl")
    with pytest.raises(UserError) as caught:
        create_job(backends, JobRequest(**{"endpoint": ENDPOINT, "input_file_id": file.id, **changes}))
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_job_starts_in_validation_with_its_deadline(backends: Backends) -> None:
    job = get_job(
        backends.database, submit(backends, b"", window_s=60, lane=Lane.URGENT, metadata={"a": "b"})
    )
    assert (job.status, job.lane, job.job_metadata) == (JobStatus.VALIDATING, Lane.URGENT, {"a": "b"})
    assert job.deadline_ms - job.created_ms == 60_000
    default = get_job(backends.database, submit(backends, b""))
    assert default.deadline_ms - default.created_ms == backends.settings.job_window_s * 1000


def test_a_job_that_is_not_there_is_said_so(backends: Backends) -> None:
    with pytest.raises(NotFound, match="batch_none"):
        get_job(backends.database, "batch_none")


def test_a_file_above_the_limit_is_refused_and_not_kept(backends: Backends, tmp_path: Path) -> None:
    small = with_settings(backends, max_file_bytes=10)
    with pytest.raises(UserError, match="larger than 10 bytes") as caught:
        store_file(small, [b"x" * 6, b"x" * 6], filename="large.jsonl")
    assert caught.value.code == "file_too_large"
    assert [path for path in (tmp_path / "storage").rglob("*") if path.is_file()] == []
    assert store_file(small, [b"x" * 5, b"x" * 5], filename="fits.jsonl").bytes == 10


def test_a_repeated_command_finds_its_job_until_it_is_delivered(backends: Backends) -> None:
    job_id = submit(backends, b"", resume_key="key")
    found = find_resumable(backends.database, "key")
    assert found is not None
    assert found.id == job_id
    mark_delivered(backends.database, job_id)
    assert find_resumable(backends.database, "key") is None


def test_a_good_file_is_planned_in_its_order(backends: Backends) -> None:
    job = taken_in(with_settings(backends, chunk_requests=3), good_input(8))
    assert (job.status, job.total, job.model) == (JobStatus.IN_PROGRESS, 8, "sim")
    assert [chunk.requests for chunk in chunks_of(backends, job.id)] == [3, 3, 2]
    assert {chunk.state for chunk in chunks_of(backends, job.id)} == {ChunkState.PENDING}
    assert [(request.index, request.custom_id) for request in planned(backends, job)] == [
        (index, f"r{index}") for index in range(8)
    ]
    assert sum(chunk.estimated_tokens for chunk in chunks_of(backends, job.id)) == job.estimated_tokens
    assert job.intake_bytes == len(good_input(8))
    assert job.in_progress_ms is not None


def test_bodies_reach_the_plan_byte_for_byte(backends: Backends) -> None:
    body = '{"model": "sim",  "messages": ["é \\u00e9 \\ud83d\\ude00 日本"]}'
    line = f'{{"custom_id":"données","method":"POST","url":"{ENDPOINT}","body":{body}}}'.encode()
    job = taken_in(backends, b"\xef\xbb\xbf\r\n" + line)
    assert planned(backends, job) == [PlannedRequest(0, "données", body.encode())]


def test_all_lines_of_a_bad_file_are_judged(backends: Backends) -> None:
    lines = [b"{bad", request_line("a"), b"", request_line("a"), b"[]", request_line("b", model="other")]
    job = taken_in(backends, b"\n".join(lines))
    assert job.status == JobStatus.FAILED
    assert codes(job) == [
        ("invalid_json_line", 1),
        ("duplicate_custom_id", 4),
        ("invalid_json_line", 5),
        ("model_mismatch", 6),
    ]
    assert job.failed_ms is not None
    assert job.planned_key is None
    assert chunks_of(backends, job.id) == []


@pytest.mark.parametrize(
    ("content", "settings", "fault"),
    [
        (b"", {}, ("empty_file", None)),
        (b"\n \r\n\xef\xbb\xbf", {}, ("invalid_json_line", 3)),
        (b"\xef\xbb\xbf\n\t\n", {}, ("empty_file", None)),
        (good_input(3), {"max_requests": 2}, ("too_many_tasks", 3)),
        (good_input(1), {"max_line_bytes": 20}, ("line_too_long", 1)),
        (good_input(1) + b"\xff\n", {}, ("invalid_encoding", 2)),
        (good_input(2) + good_input(1), {}, ("duplicate_custom_id", 3)),
        (good_input(1, model="nobody"), {}, ("model_not_found", 1)),
    ],
)
def test_a_bad_file_fails_its_job(
    backends: Backends, content: bytes, settings: dict[str, Any], fault: tuple[str, int | None]
) -> None:
    job = taken_in(with_settings(backends, **settings), content)
    assert (job.status, codes(job)) == (JobStatus.FAILED, [fault])


@pytest.mark.parametrize("content", [b"{bad\n" * 50, good_input(1) * 50], ids=["bad lines", "duplicates"])
def test_only_the_first_faults_are_listed(backends: Backends, content: bytes) -> None:
    job = taken_in(with_settings(backends, max_listed_errors=5), content)
    first = 1 if content.startswith(b"{bad") else 2
    assert [line for _, line in codes(job)] == list(range(first, first + 5))


def test_no_line_of_a_file_vanishes(backends: Backends) -> None:
    twice = b'{"custom_id":1,' + request_line("twice")[1:]
    job = taken_in(backends, b"\n".join([request_line("a"), twice, request_line("b")]))
    assert job.status == JobStatus.FAILED or job.total == 3


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_files_that_people_send_are_accepted_or_refused_as_they_should(
    sqlite_backends: Backends, name: str
) -> None:
    case = EXPECTED[name]
    content = (CASES / name).read_bytes()
    backends = with_settings(sqlite_backends, **case.get("settings", {}))
    model = None if b'"model"' in content else "tiny"
    job = taken_in(backends, content, endpoint=case["endpoint"], model=model)
    # Where others may fail single lines, intake here refuses the file.
    if case["status"] != "completed":
        assert job.status == JobStatus.FAILED
        if "lines" in case:
            assert sorted({line for _, line in codes(job) if line}) == case["lines"]
        if "code" in case:
            assert case["code"] in {code for code, _ in codes(job)}
    else:
        assert (job.status, job.errors) == (JobStatus.IN_PROGRESS, None)


def test_an_input_that_is_gone_fails_its_job(backends: Backends) -> None:
    job_id = submit(backends, good_input(1))
    backends.storage.delete(f"files/{get_job(backends.database, job_id).input_file_id}")
    run_intake(backends, job_id)
    assert codes(get_job(backends.database, job_id)) == [("input_missing", None)]


def test_intake_is_given_to_one_process_at_a_time(backends: Backends) -> None:
    job_id = submit(backends, good_input(1))
    first = claim_intake(backends.database, job_id, 30)
    assert first is not None
    assert claim_intake(backends.database, job_id, 30) is None
    change_job(backends, job_id, intake_expires_ms=1)
    second = claim_intake(backends.database, job_id, 30)
    assert second is not None
    assert second.token > first.token
    assert not renew_intake(backends.database, first, 1, 30), "the first one has lost its claim"
    assert renew_intake(backends.database, second, 1, 30)


def test_intake_of_a_job_that_is_taken_or_done_does_nothing(backends: Backends) -> None:
    job = taken_in(backends, good_input(2))
    run_intake(backends, job.id)
    assert len(chunks_of(backends, job.id)) == 1
    other = submit(backends, good_input(1))
    claim_intake(backends.database, other, 30)
    run_intake(backends, other)
    assert get_job(backends.database, other).status == JobStatus.VALIDATING


def test_an_input_that_kills_its_readers_fails_in_the_end(backends: Backends) -> None:
    job_id = submit(backends, good_input(1))
    change_job(backends, job_id, intake_attempts=backends.settings.max_attempts)
    run_intake(backends, job_id)
    job = get_job(backends.database, job_id)
    assert (job.status, codes(job)) == (JobStatus.FAILED, [("input_unreadable", None)])


def test_a_plan_whose_job_was_cancelled_meanwhile_is_thrown_away(
    backends: Backends, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job_id = submit(backends, good_input(3))

    def cancel_while_reading(key: str) -> Any:
        cancel_job(backends.database, job_id)
        yield good_input(3)

    monkeypatch.setattr(backends.storage, "stream", cancel_while_reading)
    run_intake(backends, job_id)
    assert get_job(backends.database, job_id).status == JobStatus.CANCELLING
    assert chunks_of(backends, job_id) == []
    assert list((tmp_path / "storage" / "planned").glob("*")) == []


def test_a_reader_that_was_overtaken_changes_nothing(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit(backends, good_input(3))
    read = backends.storage.stream

    def overtaken(key: str) -> Any:
        with backends.database.write() as session:
            session.execute(update(Job).values(intake_token=Job.intake_token + 1))
        yield from read(key)

    monkeypatch.setattr(backends.storage, "stream", overtaken)
    run_intake(backends, job_id)
    job = get_job(backends.database, job_id)
    assert (job.status, job.errors, job.planned_key) == (JobStatus.VALIDATING, None, None)
    assert chunks_of(backends, job_id) == []
    with pytest.raises(StoredObjectMissing):
        backends.storage.size(f"planned/{job_id}")
