"""A short run of faults on each database: what was accepted is done, once, and nothing is left behind.

Longer: `python -m tests.chaos --seconds 600`, or `make chaos`.
"""

import os
from pathlib import Path

import pytest

from tests.chaos.databases import POSTGRESQL, SQLITE
from tests.chaos.object_store import FOLDER, S3
from tests.chaos.run import run_chaos

SECONDS = 25.0
SEED = int(os.environ.get("CHAOS_SEED", "23557"))
"""One and the same, because a test that fails by chance helps nobody. Most faults are in its schedule."""


@pytest.mark.parametrize(("database", "object_store"), [(SQLITE, FOLDER), (POSTGRESQL, S3)])
def test_whatever_breaks_every_accepted_request_has_one_result(
    tmp_path: Path, database: str, object_store: str
) -> None:
    report = run_chaos(
        tmp_path / "mill", database=database, object_store=object_store, seed=SEED, seconds=SECONDS
    )
    print(report)
    assert report.violations == [], str(report)
