"""Tables as rows: CSV, JSON lines and Parquet, good and bad."""

import csv
import io
import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.exceptions import GenericError

from tasks import row_readers
from tasks.errors import LineFault
from tasks.row_readers import BrokenTable, RowTable, open_table, plain
from tasks.rows import RowsFormat
from tasks.storage import Storage, StoredObjectMissing

MOST = 1_000
"""Longest line of these tests, in bytes."""


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage((tmp_path / "storage").as_uri())


def in_blocks(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


def opened(kind: RowsFormat, content: bytes, size: int = 7) -> RowTable:
    """A table that is read from memory in small blocks."""
    # Text tables never look at storage.
    return open_table(Storage("memory:///"), "", kind, in_blocks(content, size), MOST, lambda _: None)


def rows(table: RowTable) -> list[tuple[int, dict[str, Any]]]:
    read = list(table.rows)
    assert [row for _, row in read if isinstance(row, LineFault)] == []
    return [(number, row) for number, row in read if isinstance(row, dict)]


def faults(table: RowTable) -> list[tuple[str, int | None]]:
    return [(row.code, row.line) for _, row in table.rows if isinstance(row, LineFault)]


def broken(read: Callable[[], RowTable]) -> LineFault:
    with pytest.raises(BrokenTable) as caught:
        read()
    return caught.value.fault


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a,b\n1,x\n2,y\n", [(2, {"a": "1", "b": "x"}), (3, {"a": "2", "b": "y"})]),
        # As Windows writes it: byte order mark, CRLF; no newline at the end.
        (b"\xef\xbb\xbfa,b\r\n1,\xc3\xa9\r\n2,y", [(2, {"a": "1", "b": "é"}), (3, {"a": "2", "b": "y"})]),
        # Blank lines are nothing, also before the header; numbers are those of the file.
        (b"\n\na,b\n\n1,x\n\n", [(5, {"a": "1", "b": "x"})]),
        # A cell of several lines: the number is that of its first.
        (b'a,b\n"1\n\r\n ""2""",x\n3,y\n', [(2, {"a": '1\n\r\n "2"', "b": "x"}), (5, {"a": "3", "b": "y"})]),
        (b"a,b\n,\n", [(2, {"a": "", "b": ""})]),
        (b"a\n\xe2\x80\xa8x\n", [(2, {"a": "\u2028x"})]),
        (b"a\nx\x00y\n", [(2, {"a": "x\0y"})]),
        (b"a b,\xc3\xa9\n1,2\n", [(2, {"a b": "1", "é": "2"})]),
        (b"a,b\n", []),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_csv_is_read_row_by_row(content: bytes, expected: list[Any], size: int) -> None:
    table = opened(RowsFormat.CSV, content, size)
    assert rows(table) == expected


@pytest.mark.parametrize(
    ("content", "code", "line", "named"),
    [
        (b"", "empty_file", None, "no rows"),
        (b"\n\r\n", "empty_file", None, "no rows"),
        (b"a,,b\n", "invalid_header", 1, "Column 2"),
        (b"\n a, \n", "invalid_header", 2, "Column 2"),
        (b"a,b,a\n", "invalid_header", 1, "'a'"),
        (b'"a\n', "invalid_row", 1, "unexpected end"),
        (b"\xff\xfea\n", "invalid_encoding", 1, "CSV UTF-8"),
        (b"a" * 2 * MOST, "line_too_long", 1, "max_line_bytes"),
    ],
)
def test_csv_without_a_usable_header_is_no_table(
    content: bytes, code: str, line: int | None, named: str
) -> None:
    fault = broken(lambda: opened(RowsFormat.CSV, content))
    assert (fault.code, fault.line) == (code, line)
    assert named in fault.message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        # Those that do not fit are named; those after them are read.
        (b"a,b\n1\n1,2\n1,2,3\n", [("invalid_row", 2), ("invalid_row", 4)]),
        (b'a\n"x"y\nz\n"x" \n', [("invalid_row", 2), ("invalid_row", 4)]),
        (b"a\nx\ry\nz\n", [("invalid_row", 2)]),
        (b'a\nx\n"never closed\n', [("invalid_row", 3)]),
        # From here on, nothing can be told.
        (b"a\nx\ny\xff\nz\n", [("invalid_encoding", 3)]),
        (b"a\nx\ny\xc3", [("invalid_encoding", 3)]),
        (b"a\nx\n" + b"y" * 2 * MOST + b"\nz\n", [("line_too_long", 3)]),
        # An open quote takes in the lines behind it: not the whole file.
        (b'a\nx\n"open\n' + b"y\n" * MOST, [("line_too_long", 3)]),
        (b"a,b\n" + b'"\n","\n",' * MOST, [("line_too_long", 2)]),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_rows_of_csv_that_do_not_fit_are_named_by_line(
    content: bytes, expected: list[tuple[str, int]], size: int
) -> None:
    assert faults(opened(RowsFormat.CSV, content, size)) == expected


CELLS = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="\r"), max_size=12
) | st.sampled_from(["\r\n", "\r", '"', '""', ",", "\n", "\n\n", "\ufeff", "\u2028", "\0", " x "])


@given(
    names=st.lists(
        CELLS.filter(lambda name: name.strip() != "" and "\ufeff" not in name),
        min_size=1,
        max_size=4,
        unique=True,
    ),
    data=st.data(),
    end=st.sampled_from(["\n", "\r\n"]),
    bom=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    size=st.integers(1, 40),
)
def test_what_a_csv_writer_wrote_is_read_back(
    names: list[str], data: st.DataObject, end: str, bom: bytes, size: int
) -> None:
    table = data.draw(st.lists(st.lists(CELLS, min_size=len(names), max_size=len(names)), max_size=6))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([names, *table])
    read = opened(RowsFormat.CSV, bom + text.getvalue().encode(), size)
    assert read.columns == tuple(names)
    assert [row for _, row in rows(read)] == [dict(zip(names, cells, strict=True)) for cells in table]


def test_json_lines_are_objects() -> None:
    content = b'\xef\xbb\xbf{"a": 1, "b": [null, {"c": "\xc3\xa9"}]}\r\n\n{"d": "\\ud83d\\ude00"}'
    table = opened(RowsFormat.JSONL, content)
    assert table.columns == ("a", "b")
    assert rows(table) == [(1, {"a": 1, "b": [None, {"c": "é"}]}), (3, {"d": "😀"})]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"[1]", "invalid_row"),
        (b'"text"', "invalid_row"),
        (b"{'a': 1}", "invalid_json_line"),
        (b'{"a": NaN}', "invalid_json_line"),
        (b'{"a": "\\ud800"}', "invalid_json_line"),
        (b'{"a":' * 100_000, "line_too_long"),
        (b'{"a": "\xff"}', "invalid_encoding"),
        (b"[" * 900, "invalid_row"),
        (b'{"a":' + b"[" * 900 + b"]" * 90 + b"}", "invalid_json_line"),
    ],
)
@pytest.mark.parametrize("place", ["first", "later"])
def test_json_lines_that_are_no_objects_are_named(line: bytes, code: str, place: str) -> None:
    good = b'{"a": 1}'
    content = b"\n".join([line, good] if place == "first" else [good, b"", line, good])
    assert faults(opened(RowsFormat.JSONL, content)) == [(code, 1 if place == "first" else 3)]


def test_no_json_lines_are_no_rows() -> None:
    table = opened(RowsFormat.JSONL, b"\n\n")
    assert (table.columns, rows(table)) == ((), [])


def stored(storage: Storage, table: pa.Table, **options: Any) -> RowTable:
    """A Parquet file, read from storage."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return parquet(storage, file.getvalue())


def parquet(storage: Storage, content: bytes) -> RowTable:
    storage.put("table", in_blocks(content, 1 << 20))
    return open_table(storage, "table", RowsFormat.PARQUET, (), MOST, lambda _: None)


def test_values_of_parquet_become_plain(storage: Storage) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6)
    columns = {
        "text": pa.array(["é"]),
        "number": pa.array([2**63], pa.uint64()),
        "decimal": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
        "date": pa.array([date(2026, 1, 2)]),
        "time": pa.array([moment], pa.timestamp("us")),
        # As pandas writes it: finer than Python's times.
        "nanoseconds": pa.array([moment], pa.timestamp("us")).cast(pa.timestamp("ns")),
        "zone": pa.array([moment], pa.timestamp("ms", "UTC")),
        "bytes": pa.array([b"\xff\x00"]),
        "nested": pa.array([[{"a": 1, "b": None}]]),
        "dictionary": pa.array(["x"]).dictionary_encode(),
        "nothing": pa.array([None]),
    }
    table = stored(storage, pa.table(columns))
    assert table.columns == tuple(columns)
    ((number, row),) = rows(table)
    assert number == 1
    assert plain(row) == {
        "text": "é",
        "number": 2**63,
        "decimal": "1.50",
        "date": "2026-01-02",
        "time": "2026-01-02T03:04:05.000006",
        "nanoseconds": "2026-01-02T03:04:05.000006",
        "zone": "2026-01-02T03:04:05Z",
        "bytes": "/wA=",
        "nested": [{"a": 1, "b": None}],
        "dictionary": "x",
        "nothing": None,
    }
    assert json.loads(json.dumps(plain(row))) == plain(row)


def test_times_that_python_cannot_hold_lose_their_last_digits(storage: Storage) -> None:
    odd = 1_700_000_000_123_456_789
    columns = {
        "stamp": pa.array([odd], pa.timestamp("ns", "UTC")),
        "time": pa.array([1_999], pa.time64("ns")),
        "span": pa.array([1_999], pa.duration("ns")),
    }
    ((_, row),) = rows(stored(storage, pa.table(columns)))
    assert plain(row) == {
        "stamp": "2023-11-14T22:13:20.123456Z",
        "time": "00:00:00.000001",
        "span": "PT0.000001S",
    }


def test_a_row_of_parquet_that_cannot_be_read_is_named_alone(storage: Storage) -> None:
    offsets = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xffb")])
    table = stored(storage, pa.table({"text": texts}))
    read = list(table.rows)
    assert [(number, row) for number, row in read if isinstance(row, dict)] == [
        (1, {"text": "a"}),
        (3, {"text": "b"}),
    ]
    assert [(row.code, row.line) for _, row in read if isinstance(row, LineFault)] == [("invalid_row", 2)]


def test_rows_of_all_row_groups_and_batches_are_counted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_readers, "BATCH_ROWS", 3)
    table = stored(storage, pa.table({"n": list(range(20))}), row_group_size=7)
    assert rows(table) == [(number + 1, {"n": number}) for number in range(20)]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"a,b\n1,2\n", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_what_is_no_parquet_is_said_so(storage: Storage, content: bytes) -> None:
    fault = broken(lambda: parquet(storage, content))
    assert fault.code == "invalid_table"
    assert "Parquet" in fault.message


def test_damage_within_parquet_is_one_fault(storage: Storage) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(2000)]}), file, compression="zstd")
    content = bytearray(file.getvalue())
    content[20:200] = b"\xaa" * 180
    assert [code for code, _ in faults(parquet(storage, bytes(content)))] == ["invalid_table"]


def test_two_columns_of_parquet_with_one_name_are_refused(storage: Storage) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert broken(lambda: stored(storage, table)).code == "invalid_header"


def test_a_table_that_is_not_in_storage_is_missed(storage: Storage) -> None:
    with pytest.raises(StoredObjectMissing):
        open_table(storage, "nothing", RowsFormat.PARQUET, (), MOST, lambda _: None)


def test_reading_parquet_tells_how_far_it_is(storage: Storage) -> None:
    storage.put("table", [parquet_bytes(1_000)])
    read: list[int] = []
    table = open_table(storage, "table", RowsFormat.PARQUET, (), MOST, read.append)
    assert len(rows(table)) == 1_000
    assert len(read) > 1
    assert sum(read) == pytest.approx(storage.size("table"), rel=0.05)


def parquet_bytes(count: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(count))}), file)
    return file.getvalue()


def test_storage_that_fails_is_no_fault_of_the_file(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("table", [parquet_bytes(100_000)])
    table = open_table(storage, "table", RowsFormat.PARQUET, (), MOST, lambda _: None)

    def fails(*_: Any) -> bytes:
        raise GenericError("the storage does not answer")

    monkeypatch.setattr(Storage, "read_range", fails)
    with pytest.raises(GenericError):
        list(table.rows)
    with pytest.raises(GenericError):
        open_table(storage, "table", RowsFormat.PARQUET, (), MOST, lambda _: None)


def test_a_table_that_vanishes_while_it_is_read_is_missed(storage: Storage) -> None:
    storage.put("table", [parquet_bytes(100_000)])
    table = open_table(storage, "table", RowsFormat.PARQUET, (), MOST, lambda _: None)
    storage.delete("table")
    with pytest.raises(StoredObjectMissing):
        list(table.rows)
