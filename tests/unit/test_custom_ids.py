"""Uniqueness of custom_ids, in memory and spilled to disk."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import custom_ids
from tasks.custom_ids import CustomIds


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def duplicates(names: list[str]) -> list[tuple[int, int]]:
    with CustomIds() as ids:
        for line, name in enumerate(names, start=1):
            ids.add(name, line)
        return sorted(ids.duplicates())


def reference(names: list[str]) -> list[tuple[int, int]]:
    return [
        (line, names.index(name) + 1)
        for line, name in enumerate(names, start=1)
        if names.index(name) + 1 != line
    ]


@given(
    names=st.lists(st.text(alphabet="ab\u00e9\u65e5", max_size=2), max_size=60),
    spill_records=st.integers(1, 30),
)
def test_each_repetition_names_the_first_line_with_its_id(names: list[str], spill_records: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(custom_ids, "SPILL_BYTES", spill_records * custom_ids._RECORD_BYTES)
        assert duplicates(names) == reference(names)


def test_repetitions_are_found_across_spills(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(custom_ids, "SPILL_BYTES", 10 * custom_ids._RECORD_BYTES)
    names = [f"r{number}" for number in range(1000)]
    assert duplicates([*names, "r0", "r999", "r0"]) == [(1001, 1), (1002, 1000), (1003, 1)]


def test_ids_that_differ_in_case_or_form_only_are_different() -> None:
    assert duplicates(["a", "A", "a ", "1", "01", "\u00e9", "e\u0301"]) == []


def test_few_ids_never_touch_the_disk(folder: Path) -> None:
    with CustomIds() as ids:
        ids.add("a", 1)
        assert list(ids.duplicates()) == []
        assert not any(folder.iterdir())


@pytest.mark.parametrize("fault", [None, RuntimeError("the reader failed")])
def test_spilled_files_are_removed_at_the_end(
    monkeypatch: pytest.MonkeyPatch, folder: Path, fault: Exception | None
) -> None:
    monkeypatch.setattr(custom_ids, "SPILL_BYTES", custom_ids._RECORD_BYTES)

    def read() -> None:
        with CustomIds() as ids:
            ids.add("a", 1)
            assert any(folder.iterdir()), "the test must spill"
            if fault is not None:
                raise fault

    if fault is None:
        read()
    else:
        with pytest.raises(RuntimeError, match="the reader failed"):
            read()
    assert not any(folder.iterdir())


def test_memory_stays_within_the_spill_size(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    limit = 20 * custom_ids._RECORD_BYTES
    monkeypatch.setattr(custom_ids, "SPILL_BYTES", limit)
    with CustomIds() as ids:
        for line in range(500):
            ids.add(f"r{line}", line)
            assert sum(len(bucket) for bucket in ids._buckets) < limit
