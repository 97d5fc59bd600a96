"""What dead processes leave in storage goes; what a row names, and what is young, stays."""

import os
import time
from pathlib import Path
from urllib.parse import urlparse

import pytest
from sqlalchemy import select

from tasks import orphans, storage
from tasks.backends import Backends
from tasks.orphans import remove_orphans
from tasks.storage import StoredObjectMissing
from tasks.tables import File, Job
from tests.samples import started_job

NOW = 0.0
DAY_S = 86_400.0


def named(backends: Backends) -> set[str]:
    with backends.database.read() as session:
        keys = [*session.scalars(select(Job.planned_key)), *session.scalars(select(File.storage_key))]
    return {key for key in keys if key is not None}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "KEYS_IN_PAGE", 2)


def test_objects_that_no_row_names_are_removed(backends: Backends) -> None:
    for _ in range(3):
        started_job(backends, 2)
    strays = [f"{prefix}stray-{number}" for prefix in orphans.NAMED_BY for number in range(3)]
    for key in strays:
        backends.storage.put(key, [b"x"])
    assert remove_orphans(backends, NOW) == len(strays)
    for key in strays:
        with pytest.raises(StoredObjectMissing):
            backends.storage.size(key)
    for key in named(backends):
        assert backends.storage.size(key) > 0
    assert remove_orphans(backends, NOW) == 0


def test_young_objects_may_get_a_row_yet(sqlite_backends: Backends) -> None:
    sqlite_backends.storage.put("planned/stray", [b"x"])
    assert remove_orphans(sqlite_backends) == 0
    assert sqlite_backends.storage.size("planned/stray") == 1


def test_what_a_killed_writer_left_goes_and_what_is_being_written_stays(sqlite_backends: Backends) -> None:
    folder = Path(urlparse(sqlite_backends.storage.url).path)
    writer = sqlite_backends.storage.writer("files/in-work")
    writer.write(b"x" * (20 << 20))
    left = folder / "files" / "left#1"
    left.write_bytes(b"x")
    os.utime(left, (time.time() - 2 * DAY_S,) * 2)
    assert remove_orphans(sqlite_backends) == 1
    assert not left.exists()
    writer.close()
    assert sqlite_backends.storage.size("files/in-work") == 20 << 20


def test_every_prefix_that_is_written_is_looked_through() -> None:
    sources = "".join(path.read_text() for path in (Path(orphans.__file__).parent).glob("*.py"))
    for prefix in orphans.NAMED_BY:
        assert f'f"{prefix}{{' in sources
    assert sources.count('_key = f"') + sources.count('.storage, f"') == len(orphans.NAMED_BY) + 1
