"""What the dry run says of an input, and that intake says the same."""

import pytest

from tasks.backends import Backends
from tasks.check import CheckReport, check_input
from tasks.chunks import record_results
from tasks.errors import NotFound
from tasks.file_sink import store_file
from tasks.rows import RowsFormat, RowsSpec
from tasks.submission import JobRequest
from tasks.tables import JobStatus
from tests.row_samples import CSV_ROWS, asked, planned, rows_job, spec_of, taken_in
from tests.samples import ENDPOINT, answer, good_input, leased, request_line, with_settings

JSONL = RowsFormat.JSONL
BAD_ROWS: list[tuple[str, bytes, RowsSpec, list[tuple[str, int | None, str | None]]]] = [
    ("a missing column", b"a,b\n1,2\n3,4\n", spec_of(), [("missing_column", 1, "template")]),
    (
        "two of them",
        b"a,b\n1,2\n",
        spec_of(template="{{ prose }}{{ row['my prose'] }}{{ a }}", id_column="id"),
        [
            ("missing_column", 1, "template"),
            ("missing_column", 1, "template"),
            ("missing_column", 1, "id_column"),
        ],
    ),
    (
        "a column that some lines lack",
        b'{"prose": "a"}\n{"porse": "b"}\n\n{"prose": "c"}\n{}\n',
        spec_of(JSONL),
        [("missing_column", 2, "template"), ("missing_column", 5, "template")],
    ),
    (
        "ids that are none",
        b'prose,id\na,\nb,"x\ty"\nc,' + b"z" * 513 + b"\nd,good\n",
        spec_of(id_column="id"),
        [("invalid_custom_id", line, "id") for line in (2, 3, 4)],
    ),
    (
        "ids that come twice",
        b'prose,id\n"a\nb",x\nb,y\nc,x\n',
        spec_of(id_column="id"),
        [("duplicate_custom_id", 5, "custom_id")],
    ),
    (
        "ids that are null or alike as text",
        b'{"prose": "a", "id": 1}\n{"prose": "b", "id": "1"}\n{"prose": "c", "id": null}\n',
        spec_of(JSONL, id_column="id"),
        [("duplicate_custom_id", 2, "custom_id"), ("invalid_custom_id", 3, "id")],
    ),
    (
        "values that the template cannot use",
        b'{"prose": {"a": 1}}\n{"prose": {}}\n{"prose": "x"}\n',
        spec_of(JSONL, "{{ prose.a }}"),
        [("invalid_row", 2, "template"), ("invalid_row", 3, "template")],
    ),
    ("rows of another length", b"prose\na\nb,c\n", spec_of(), [("invalid_row", 3, None)]),
    ("no rows", b"prose\n", spec_of(), [("empty_file", None, None)]),
    ("nothing", b"", spec_of(), [("empty_file", None, None)]),
    ("no lines", b"", spec_of(JSONL), [("empty_file", None, None)]),
    ("another format", b"prose\na\n", spec_of(RowsFormat.PARQUET), [("invalid_table", None, None)]),
]


@pytest.mark.parametrize(
    ("content", "spec", "expected"), [case[1:] for case in BAD_ROWS], ids=[case[0] for case in BAD_ROWS]
)
def test_rows_that_are_no_requests_are_named(
    backends: Backends, content: bytes, spec: RowsSpec, expected: list[tuple[str, int | None, str | None]]
) -> None:
    request = asked(backends, content, spec)
    report = check_input(backends, request)
    assert [(fault.code, fault.line, fault.param) for fault in report.faults] == expected
    assert (report.ok, report.fault_count) == (False, len(expected))
    job = taken_in(backends, request)
    assert job.status == JobStatus.FAILED
    said = [(fault["code"], fault["line"], fault["param"]) for fault in job.errors or []]
    assert said == expected
    assert [fault["message"] for fault in job.errors or []] == [fault.message for fault in report.faults]


def test_a_missing_column_is_named_with_those_that_are_there(sqlite_backends: Backends) -> None:
    (fault,) = check_input(sqlite_backends, asked(sqlite_backends, b"a,my b\n1,2\n", spec_of())).faults
    assert fault.message == "'template' names the column 'prose'; there are: 'a', 'my b'."


def test_a_prompt_that_gets_too_long_is_a_fault_of_its_row(sqlite_backends: Backends) -> None:
    backends = with_settings(sqlite_backends, max_line_bytes=200)
    content = b"prose\n" + b"a" * 90 + b"\nb\n" + b"c" * 199 + b"\n"
    report = check_input(backends, asked(backends, content, spec_of(template="{{ prose }}{{ prose }}")))
    assert [(fault.code, fault.line) for fault in report.faults] == [
        # With what goes around it, it is no request any more.
        ("line_too_long", 2),
        ("invalid_row", 4),
    ]


def test_a_dry_run_makes_nothing_and_tells_what_would_be(backends: Backends) -> None:
    request = asked(backends, CSV_ROWS, spec_of(id_column="id", body={"max_tokens": 7}))
    report = check_input(backends, request, shown=2)
    assert report.ok
    assert (report.requests, report.model) == (3, "sim")
    assert tuple(report.columns) == ("id", "prose", "note")
    assert [(sample.custom_id, sample.prompt) for sample in report.samples] == [
        ("x-1", "Say: Grüße,\nWelt"),
        ("x-2", "Say: zwei"),
    ]
    assert report.expected_s is None, "it never ran"
    job = taken_in(backends, request)
    assert report.estimated_tokens == job.estimated_tokens
    requests = planned(backends, job)
    assert [sample.body for sample in report.samples] == [request.body for request in requests[:2]]


def test_a_dry_run_knows_the_time_once_its_model_has_run(sqlite_backends: Backends) -> None:
    job = rows_job(sqlite_backends)
    lease = leased(sqlite_backends, job.id)
    outcomes = [
        answer(index, custom_id=f"row-{index + 1}", input_tokens=30, output_tokens=20) for index in range(3)
    ]
    record_results(sqlite_backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)
    report = check_input(sqlite_backends, asked(sqlite_backends, CSV_ROWS, spec_of()))
    # 150 tokens in the shortest stretch that is counted, a second.
    assert report.expected_s == pytest.approx(report.estimated_tokens / 150)


def test_a_dry_run_counts_all_faults_and_lists_the_first(backends: Backends) -> None:
    few = with_settings(backends, max_listed_errors=3)
    content = b"prose,id\n" + b"a,x\n" * 5 + b"a\n" * 10 + b"b,y\n"
    report = check_input(few, asked(few, content, spec_of(id_column="id")))
    assert [(fault.code, fault.line) for fault in report.faults] == [
        ("duplicate_custom_id", 3),
        ("duplicate_custom_id", 4),
        ("duplicate_custom_id", 5),
    ]
    assert (report.fault_count, report.requests) == (14, 6)


def test_a_dry_run_of_request_lines_says_what_intake_says(backends: Backends) -> None:
    lines = [b"{bad", request_line("a"), request_line("a"), request_line("b", model="other")]
    file = store_file(backends, [b"\n".join(lines)], filename="in.jsonl")
    request = JobRequest(endpoint=ENDPOINT, input_file_id=file.id)
    report = check_input(backends, request)
    job = taken_in(backends, request)
    assert [fault.message for fault in report.faults] == [fault["message"] for fault in job.errors or []]
    assert report.fault_count == len(report.faults) == 3


def good_report(backends: Backends, content: bytes) -> CheckReport:
    file = store_file(backends, [content], filename="in.jsonl")
    return check_input(backends, JobRequest(endpoint=ENDPOINT, input_file_id=file.id))


def test_a_dry_run_of_request_lines_finds_their_model(sqlite_backends: Backends) -> None:
    report = good_report(sqlite_backends, good_input(5, prompt="Hi"))
    assert (report.ok, report.requests, report.model, tuple(report.columns)) == (True, 5, "sim", ())
    assert [sample.prompt for sample in report.samples] == ["Hi"] * 3


def test_a_dry_run_of_a_file_that_is_not_there_says_so(backends: Backends) -> None:
    with pytest.raises(NotFound):
        check_input(backends, JobRequest(endpoint=ENDPOINT, input_file_id="file-none"))
