"""A full disk: what is refused is refused in words, what was accepted is done once there is room again."""

from pathlib import Path

import pytest

from tests.chaos.databases import POSTGRESQL, SQLITE
from tests.chaos.disk import FILL_DISK, FORBID_GROWTH, small_disk
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.run import Report, run_chaos
from tests.chaos.schedule import Planned

SECONDS = 12.0


def run_with(folder: Path, database: str, full: Fault) -> Report:
    """Twice full, the second time with workers that start meanwhile."""
    planned = [
        Planned(2.0, full, 1),
        Planned(7.0, full, 2),
        Planned(8.0, FAULTS["kill_engine"], 3),
        Planned(8.5, FAULTS["kill_system"], 4),
    ]
    return run_chaos(folder, database=database, seed=1, seconds=SECONDS, planned=planned)


@pytest.mark.parametrize("database", [SQLITE, POSTGRESQL])
def test_a_disk_that_is_full_for_a_while_costs_nothing_that_was_accepted(
    tmp_path: Path, database: str
) -> None:
    folder = tmp_path / "mill"
    with small_disk(folder / "data") as is_small:
        if not is_small:
            pytest.skip("this user may not mount a small disk; the other test limits files instead")
        report = run_with(folder, database, FILL_DISK)
    print(report)
    assert report.violations == [], str(report)
    assert any("507 storage_full" in answer for answer in report.answers), str(report)
    assert not any(answer.startswith("500") for answer in report.answers), str(report)


def test_files_that_may_not_grow_for_a_while_cost_nothing_that_was_accepted(tmp_path: Path) -> None:
    report = run_with(tmp_path / "mill", SQLITE, FORBID_GROWTH)
    print(report)
    assert report.violations == [], str(report)
    assert any("503" in answer or "507" in answer for answer in report.answers), str(report)
    assert not any(answer.startswith("500") for answer in report.answers), str(report)
