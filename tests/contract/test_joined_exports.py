"""Results of jobs from rows, beside the rows that they came from."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import export_formats, result_rows
from tasks.backends import Backends
from tasks.export import ExportFormat, open_export
from tasks.export_formats import formula_safe
from tasks.finalise import settle
from tasks.jobs import get_job
from tasks.result_rows import RESULT_COLUMNS
from tasks.rows import RowsFormat
from tasks.storage import Storage
from tasks.tables import Job, ResultSet
from tests.row_samples import downloaded, parquet_of, rows_job, run_chunk, spec_of
from tests.samples import started_job, with_settings

FORMATS = list(ExportFormat)


def three_rows(backends: Backends, **more: Any) -> Job:
    """A job of three rows in two chunks."""
    return rows_job(with_settings(backends, chunk_requests=2), **more)


@pytest.mark.parametrize("kind", FORMATS)
def test_results_stand_beside_the_columns_of_their_rows(backends: Backends, kind: ExportFormat) -> None:
    job = three_rows(backends, spec=spec_of(id_column="id"))
    run_chunk(backends, job.id, 0, failing=frozenset({1}), text="=answer")
    rows = downloaded(backends, job, kind)
    # The last row has no result yet: it is left out.
    assert [tuple(row) for row in rows] == [("id", "prose", "note", *RESULT_COLUMNS)] * 2
    quote, nothing = ("'", "") if kind is ExportFormat.CSV else ("", None)
    assert [(row["id"], row["prose"], row["note"]) for row in rows] == [
        ("x-1", "Grüße,\nWelt", f"{quote}=1+1"),
        # A negative number is no formula.
        ("x-2", "zwei", "-5"),
    ]
    assert [row["custom_id"] for row in rows] == ["x-1", "x-2"]
    assert [row["text"] for row in rows] == [f"{quote}=answer", nothing]
    assert [int(row["status_code"]) for row in rows] == [200, 500]
    answers = [row["response"] for row in rows]
    whole = [answer if kind is ExportFormat.JSONL else json.loads(answer) for answer in answers]
    assert whole == [{"choices": [{"message": {"content": "=answer"}}]}, {}]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("which", "ids"),
    [(ResultSet.OUTPUT, ["row-1", "row-3"]), (ResultSet.ERRORS, ["row-2"]), (ResultSet.ALL, None)],
)
def test_a_part_of_the_results_keeps_its_rows(
    sqlite_backends: Backends, kind: ExportFormat, which: ResultSet, ids: list[str] | None
) -> None:
    job = three_rows(sqlite_backends)
    run_chunk(sqlite_backends, job.id, 1)
    run_chunk(sqlite_backends, job.id, 0, failing=frozenset({1}))
    rows = downloaded(sqlite_backends, job, kind, which)
    assert [row["custom_id"] for row in rows] == (ids or ["row-1", "row-2", "row-3"])
    of_id = {"row-1": "x-1", "row-2": "x-2", "row-3": "x-3"}
    assert [row["id"] for row in rows] == [of_id[row["custom_id"]] for row in rows]


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_that_are_called_as_ours_keep_their_names(
    sqlite_backends: Backends, kind: ExportFormat
) -> None:
    content = b"text,custom_id,gristmill_text,response\na,mine,b,c\n"
    job = rows_job(sqlite_backends, content, spec_of(template="{{ text }}"))
    run_chunk(sqlite_backends, job.id, text="the answer")
    (row,) = downloaded(sqlite_backends, job, kind)
    assert (row["text"], row["custom_id"], row["gristmill_text"], row["response"]) == ("a", "mine", "b", "c")
    assert (row["gristmill_gristmill_text"], row["gristmill_custom_id"]) == ("the answer", "row-1")
    assert "the answer" in str(row["gristmill_response"])
    assert int(row["status_code"]) == 200


@pytest.mark.parametrize("kind", FORMATS)
def test_json_lines_may_each_have_columns_of_their_own(sqlite_backends: Backends, kind: ExportFormat) -> None:
    content = b'{"prose": "a", "n": 1}\n{"more": ["x"], "prose": "b", "text": null}\n'
    job = rows_job(sqlite_backends, content, spec_of(RowsFormat.JSONL))
    run_chunk(sqlite_backends, job.id)
    rows = downloaded(sqlite_backends, job, kind)
    assert [row["gristmill_text"] for row in rows] == ["ok", "ok"]
    if kind is ExportFormat.JSONL:
        # As they were, types and all.
        assert [list(row)[:3] for row in rows] == [["prose", "n", "custom_id"], ["more", "prose", "text"]]
        assert (rows[0]["n"], rows[1]["more"]) == (1, ["x"])
    else:
        nothing = "" if kind is ExportFormat.CSV else None
        assert [list(row)[:4] for row in rows] == [["prose", "n", "more", "text"]] * 2
        assert [(row["n"], row["more"], row["text"]) for row in rows] == [
            ("1", nothing, nothing),
            (nothing, '["x"]', nothing),
        ]


@pytest.mark.parametrize("kind", FORMATS)
def test_tables_have_no_more_columns_than_memory_can_hold(
    sqlite_backends: Backends, kind: ExportFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_rows, "MAX_COLUMNS", 2)
    lines = [{"prose": "a", f"c{number}": number, "text": "mine"} for number in range(4)]
    content = b"\n".join(json.dumps(line).encode() for line in lines)
    job = rows_job(sqlite_backends, content, spec_of(RowsFormat.JSONL))
    run_chunk(sqlite_backends, job.id)
    rows = downloaded(sqlite_backends, job, kind)
    assert [row["gristmill_text"] for row in rows] == ["ok"] * 4
    if kind is ExportFormat.JSONL:
        assert [{name: row[name] for name in line} for row, line in zip(rows, lines, strict=True)] == lines
    else:
        assert [list(row)[:3] for row in rows] == [["prose", "c0", "custom_id"]] * 4


def test_parquet_keeps_the_types_of_parquet(backends: Backends) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    columns = {
        "prose": pa.array(["a", None], pa.large_string()),
        "decimal": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "date": pa.array([date(2026, 1, 2), None]),
        "time": pa.array([moment, None], pa.timestamp("ns", "UTC")),
        "nested": pa.array([[{"a": 1}], None]),
        "bytes": pa.array([b"\xff", None]),
        "dictionary": pa.array(["x", None]).dictionary_encode(),
        "number": pa.array([2**63, None], pa.uint64()),
    }
    job = rows_job(backends, parquet_of(columns), spec_of(RowsFormat.PARQUET, "{{ prose }}{{ time }}"))
    run_chunk(backends, job.id)
    table = pq.read_table(io.BytesIO(b"".join(open_export(backends, job, ExportFormat.PARQUET).blocks)))
    assert table.column_names == [*columns, *RESULT_COLUMNS]
    for name, column in columns.items():
        # Times end at microseconds.
        kind = pa.timestamp("us", "UTC") if name == "time" else column.type
        assert table.schema.field(name).type == kind
        assert table[name].combine_chunks().cast(column.type).equals(column), name
    rows = downloaded(backends, job, ExportFormat.JSONL)
    assert (rows[0]["decimal"], rows[0]["time"], rows[0]["bytes"], rows[0]["nested"]) == (
        "1.50",
        "2026-01-02T03:04:05.000006Z",
        "/w==",
        [{"a": 1}],
    )
    cells = downloaded(backends, job, ExportFormat.CSV)
    assert (cells[0]["decimal"], cells[0]["date"], cells[0]["nested"]) == ("1.50", "2026-01-02", '[{"a": 1}]')
    assert (cells[1]["decimal"], cells[1]["date"], cells[1]["nested"]) == ("", "", "")


@pytest.mark.parametrize("kind", FORMATS)
def test_results_can_be_had_without_their_rows_once_those_are_gone(
    backends: Backends, kind: ExportFormat
) -> None:
    job = rows_job(backends)
    run_chunk(backends, job.id)
    backends.storage.delete(f"files/{job.input_file_id}")
    rows = downloaded(backends, job, kind)
    assert [tuple(row) for row in rows] == [RESULT_COLUMNS] * 3
    assert [row["text"] for row in rows] == ["ok"] * 3


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_has_a_name_and_a_type(sqlite_backends: Backends, kind: ExportFormat) -> None:
    job = get_job(sqlite_backends.database, started_job(sqlite_backends, 1))
    export = open_export(sqlite_backends, job, kind, ResultSet.ERRORS)
    assert export.filename == f"{job.id}_errors.{kind}"
    assert open_export(sqlite_backends, job, kind).filename == f"{job.id}.{kind}"
    assert "/" in export.media_type


@pytest.mark.parametrize("kind", FORMATS)
def test_exports_come_in_blocks_of_bounded_size(
    sqlite_backends: Backends, kind: ExportFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_formats, "BLOCK_BYTES", 4_000)
    monkeypatch.setattr(export_formats, "ROW_GROUP_CHARACTERS", 4_000)
    # Noise, because Parquet is compressed.
    noise = "".join(chr(0x4E00 + (number * number * 7919) % 20_000) for number in range(500))
    content = "prose\n" + "\n".join(f"{number}{noise}" for number in range(40)) + "\n"
    job = rows_job(sqlite_backends, content.encode())
    run_chunk(sqlite_backends, job.id, text=noise)
    blocks = list(open_export(sqlite_backends, job, kind).blocks)
    assert sum(map(len, blocks)) > 100_000
    # The last one of Parquet describes all row groups.
    assert max(map(len, blocks)) < 40_000
    assert len(downloaded(sqlite_backends, job, kind)) == 40


def test_an_export_reads_its_input_as_a_stream(
    sqlite_backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_formats, "BLOCK_BYTES", 1)
    job = three_rows(sqlite_backends)
    run_chunk(sqlite_backends, job.id, 0)
    ended: list[str] = []
    read = Storage.stream

    def watched(storage: Storage, key: str) -> Iterator[bytes]:
        for byte in b"".join(read(storage, key)):
            yield bytes([byte])
        ended.append(key)

    monkeypatch.setattr(Storage, "stream", watched)
    blocks = open_export(sqlite_backends, job, ExportFormat.JSONL).blocks
    assert json.loads(next(blocks))["id"] == "x-1"
    assert json.loads(next(blocks))["id"] == "x-2"
    assert list(blocks) == []
    assert ended == [], "nobody asked for the last row"


@pytest.mark.parametrize(
    ("cell", "safe"),
    [
        ("=1", "'=1"),
        ("@x", "'@x"),
        ("+a", "'+a"),
        ("-a", "'-a"),
        ("-1+1", "'-1+1"),
        ("\t=1", "'\t=1"),
        ("\n=1", "'\n=1"),
        ("\uff1d1", "'\uff1d1"),
        ("-1.5e-3", "-1.5e-3"),
        ("+49", "+49"),
        ("a=1", "a=1"),
        ("", ""),
        (-1, -1),
        (None, None),
    ],
)
def test_only_what_could_be_a_formula_is_quoted(cell: Any, safe: Any) -> None:
    assert formula_safe(cell) == safe


def test_an_ended_job_is_exported_whole(backends: Backends) -> None:
    job = three_rows(backends)
    run_chunk(backends, job.id, 0)
    run_chunk(backends, job.id, 1)
    settle(backends, job.id)
    rows = downloaded(backends, get_job(backends.database, job.id), ExportFormat.CSV)
    assert [row["prose"] for row in rows] == ["Grüße,\nWelt", "zwei", "drei"]
