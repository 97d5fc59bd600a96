"""Result files: JSONL, CSV and Parquet, whole or not at all."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import export as export_module
from tasks import export_formats
from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.errors import UserError
from tasks.export import ExportFormat, check_destination, export_results, format_of_path
from tasks.jobs import get_job
from tasks.outcomes import Outcome
from tasks.result_rows import RESULT_COLUMNS as COLUMNS
from tasks.results import iter_results, output_line
from tests.samples import answer, leased, started_job

NUMBERS = {"status_code", "input_tokens", "output_tokens", "duration_ms"}
FORMATS = [".jsonl", ".csv", ".parquet"]


def chat(text: str | None) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}]}, ensure_ascii=False).encode()


def job_with(backends: Backends, outcomes: list[Outcome]) -> str:
    """A job with these results."""
    job_id = started_job(backends, max(1, len(outcomes)))
    if outcomes:
        lease = leased(backends, job_id)
        record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)
    return job_id


def export(backends: Backends, job_id: str, path: Path) -> None:
    export_results(backends, get_job(backends.database, job_id), path)


def exported(backends: Backends, outcomes: list[Outcome], path: Path) -> Any:
    """The rows of a file, as a reader of its format sees them."""
    export(backends, job_with(backends, outcomes), path)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    return pq.read_table(path).to_pylist()


MIXED = [
    answer(0, custom_id="é日本", body=chat("Grüße, 世界 \u2028 😀"), input_tokens=1, output_tokens=2),
    answer(1, status_code=400, body=b'{"error":{"message":"no"}}', duration_ms=5),
    answer(2, status_code=None, error_code="batch_expired"),
]


def test_jsonl_is_openais_lines_in_input_order(sqlite_backends: Backends, tmp_path: Path) -> None:
    job_id = job_with(sqlite_backends, MIXED)
    path = tmp_path / "out.jsonl"
    export(sqlite_backends, job_id, path)
    lines = [output_line(job_id, row) for row in iter_results(sqlite_backends.database, job_id)]
    assert path.read_bytes() == b"".join(lines)
    assert "Grüße, 世界 \u2028 😀".encode() in path.read_bytes()


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_tables_have_one_row_for_each_request(sqlite_backends: Backends, tmp_path: Path, ending: str) -> None:
    rows = exported(sqlite_backends, MIXED, tmp_path / f"out{ending}")
    empty = "" if ending == ".csv" else None
    assert [row["custom_id"] for row in rows] == ["é日本", "r1", "r2"]
    assert [row["text"] for row in rows] == ["Grüße, 世界 \u2028 😀", empty, empty]
    assert rows[0]["response"] == chat("Grüße, 世界 \u2028 😀").decode()
    assert [row["error_code"] for row in rows] == [empty, empty, "batch_expired"]
    assert rows[1]["error_message"] == "no"
    assert [str(row["status_code"] or "") for row in rows] == ["200", "400", ""]


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        # No error at all, and nothing but errors: columns that are null throughout keep their type.
        [answer(0, body=chat("a"))],
        [answer(0, status_code=None, error_code="engine_crash")],
        MIXED,
    ],
)
def test_parquet_has_the_same_columns_whatever_the_results_are(
    sqlite_backends: Backends, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    path = tmp_path / "out.parquet"
    exported(sqlite_backends, outcomes, path)
    schema = pq.read_schema(path)
    assert tuple(schema.names) == COLUMNS
    for name in COLUMNS:
        assert schema.field(name).type == (pa.int64() if name in NUMBERS else pa.string())


def test_csv_has_its_header_without_results_too(sqlite_backends: Backends, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert exported(sqlite_backends, [], path) == []
    assert path.read_text(encoding="utf-8").splitlines() == [",".join(COLUMNS)]


def test_parquet_of_many_row_groups_is_whole(
    sqlite_backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_formats, "ROW_GROUP_ROWS", 2)
    path = tmp_path / "out.parquet"
    rows = exported(sqlite_backends, [answer(index) for index in range(5)], path)
    assert [row["custom_id"] for row in rows] == [f"r{index}" for index in range(5)]
    assert pq.ParquetFile(path).num_row_groups == 3


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_cells_do_not_start_formulas(sqlite_backends: Backends, tmp_path: Path, start: str) -> None:
    formula = f'{start}HYPERLINK("http://x","y")'
    outcomes = [
        # A custom_id cannot start with a control character, but with the others.
        answer(0, custom_id=formula.lstrip() or "x", body=chat(formula)),
        answer(1, status_code=400, body=json.dumps({"error": {"message": formula}}).encode()),
    ]
    rows = exported(sqlite_backends, outcomes, tmp_path / "out.csv")
    assert rows[0]["text"] == "'" + formula
    assert rows[1]["error_message"] == "'" + formula
    for row in rows:
        for value in row.values():
            assert not value.startswith(("=", "+", "-", "@", "\t", "\r"))


def test_text_of_several_lines_survives_csv(sqlite_backends: Backends, tmp_path: Path) -> None:
    text = 'a "quoted", line\r\nand\nanother\rone'
    (row,) = exported(sqlite_backends, [answer(0, body=chat(text))], tmp_path / "out.csv")
    assert row["text"] == text


def test_an_answer_of_odd_shape_does_not_stop_an_export(sqlite_backends: Backends, tmp_path: Path) -> None:
    odd = [{"choices": [{"message": {"content": [{"type": "text", "text": "part"}]}}]}, {"choices": ["x"]}]
    outcomes = [answer(index, body=json.dumps(body).encode()) for index, body in enumerate(odd)]
    rows = exported(sqlite_backends, outcomes, tmp_path / "out.parquet")
    assert [row["response"] for row in rows] == [json.dumps(body) for body in odd]


@pytest.mark.parametrize("name", ["out", "out.txt", "out.json", "out.jsonl.gz"])
def test_a_file_of_unknown_format_is_refused(sqlite_backends: Backends, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"\.jsonl, \.csv, \.parquet") as caught:
        export(sqlite_backends, job_with(sqlite_backends, MIXED), tmp_path / name)
    assert caught.value.param == "output"
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["OUT.CSV", "out.Parquet", "a.b.JSONL"])
def test_the_case_of_an_ending_does_not_matter(name: str) -> None:
    assert format_of_path(Path(name)) is ExportFormat(Path(name.lower()).suffix[1:])


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("earlier", [None, b"an earlier file"])
def test_a_file_appears_whole_or_not_at_all(
    sqlite_backends: Backends,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    earlier: bytes | None,
) -> None:
    job_id = job_with(sqlite_backends, MIXED)
    path = tmp_path / "results" / f"out{ending}"
    check_destination(path)
    if earlier is not None:
        path.write_bytes(earlier)

    def breaking(*_: Any) -> Any:
        yield from list(iter_results(sqlite_backends.database, job_id))[:2]
        assert not path.exists() or path.read_bytes() == earlier, "half a file must not be seen"
        raise RuntimeError("the database went away")

    with monkeypatch.context() as broken:
        broken.setattr(export_module, "iter_results", breaking)
        with pytest.raises(RuntimeError, match="the database went away"):
            export(sqlite_backends, job_id, path)
    left = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    assert left == ({} if earlier is None else {path.name: earlier})
    export(sqlite_backends, job_id, path)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() != earlier


def test_a_destination_is_made_and_left_empty(tmp_path: Path) -> None:
    check_destination(tmp_path / "new" / "folder" / "out.csv")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_a_destination_with_an_earlier_file_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_bytes(b"earlier")
    check_destination(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == b"earlier"


@pytest.mark.parametrize("name", ["out.txt", "folder.csv", "file/out.csv", "n" * 300 + ".csv"])
def test_a_destination_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        check_destination(tmp_path / name)
    assert caught.value.param == "output"
