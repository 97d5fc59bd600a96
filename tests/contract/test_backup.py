"""A backup that is taken while work is done, and what goes on from it elsewhere."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from config.settings import load_settings
from tasks.audit import audit
from tasks.backends import Backends
from tasks.backup import MANIFEST, OBJECTS, ROWS, take_backup
from tasks.chunks import lease_chunk, record_results, unfinished_requests
from tasks.errors import UserError
from tasks.finalise import settle
from tasks.intake import run_intake
from tasks.intake_claim import claim_intake
from tasks.jobs import get_job
from tasks.keys import authenticate, create_key, secret_key
from tasks.restore import read_manifest, restore_backup
from tasks.tables import Audit, ChunkState, JobStatus, Role
from tests.conftest import MODELS
from tests.postgresql import PostgresServer
from tests.samples import (
    answer,
    change_chunks,
    change_job,
    chunks_of,
    good_input,
    leased,
    outcomes_of,
    put_on_runway,
    results_of,
    started_job,
    submit,
)

DAY_MS = 86_400_000


@pytest.fixture(params=["sqlite", "postgresql"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backends]:
    """Another place, with an empty database of each kind."""
    folder = tmp_path / "elsewhere"
    if request.param == "sqlite":
        yield from opened(f"sqlite:///{folder / 'gristmill.db'}", folder)
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with postgres.new_database() as url:
        yield from opened(url, folder)


def opened(url: str, folder: Path) -> Iterator[Backends]:
    backends = Backends.open(
        load_settings(data_dir=folder, database_url=url, models=MODELS, default_model="sim")
    )
    yield backends
    backends.database.close()


def run_to_the_end(backends: Backends, job_id: str) -> None:
    """Lease what is left, answer it, settle."""
    put_on_runway(backends, job_id)
    for chunk in chunks_of(backends, job_id):
        if chunk.state == ChunkState.DONE:
            continue
        lease = lease_chunk(backends.database, job_id, chunk.seq, "w", 30)
        assert lease is not None
        outcomes = [answer(request.index) for request in unfinished_requests(backends, lease)]
        record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)
    assert settle(backends, job_id) == JobStatus.COMPLETED


def test_a_job_that_was_running_ends_elsewhere_with_each_result_once(
    backends: Backends, elsewhere: Backends, tmp_path: Path
) -> None:
    job_id = started_job(backends, 12, per_chunk=4)
    first = leased(backends, job_id)
    record_results(
        backends.database, first, outcomes_of(backends, first, [0, 2]), worker="w", lease_s=30, finish=False
    )
    manifest = take_backup(backends, tmp_path / "backup")
    assert (manifest.rows["jobs"], manifest.rows["results"], manifest.gone) == (1, 2, [])
    # What is done after it is not in it, and does not disturb it.
    record_results(
        backends.database, first, outcomes_of(backends, first, [1, 3]), worker="w", lease_s=30, finish=True
    )

    restore_backup(elsewhere, tmp_path / "backup")
    assert [chunk.state for chunk in chunks_of(elsewhere, job_id)] == [ChunkState.PENDING] * 3
    assert [chunk.attempt for chunk in chunks_of(elsewhere, job_id)] == [0, 0, 0]
    assert {row.index for row in results_of(elsewhere, job_id)} == {0, 2}
    run_to_the_end(elsewhere, job_id)
    assert [row.index for row in results_of(elsewhere, job_id)] == list(range(12))
    job = get_job(elsewhere.database, job_id)
    assert (job.total, job.completed, job.failed) == (12, 12, 0)


def test_a_worker_of_the_old_place_cannot_write_in_the_new_one(
    backends: Backends, elsewhere: Backends, tmp_path: Path
) -> None:
    job_id = started_job(backends, 2)
    old = leased(backends, job_id)
    take_backup(backends, tmp_path / "backup")
    restore_backup(elsewhere, tmp_path / "backup")
    run_to_the_end(elsewhere, job_id)
    assert chunks_of(elsewhere, job_id)[0].lease_token > old.token


def test_a_job_whose_input_was_being_read_is_read_from_its_start(
    sqlite_backends: Backends, elsewhere: Backends, tmp_path: Path
) -> None:
    job_id = submit(sqlite_backends, good_input(5))
    assert claim_intake(sqlite_backends.database, job_id, 3600) is not None
    take_backup(sqlite_backends, tmp_path / "backup")
    restore_backup(elsewhere, tmp_path / "backup")
    run_intake(elsewhere, job_id)
    assert get_job(elsewhere.database, job_id).total == 5


def test_deadlines_move_by_the_time_that_has_passed(
    sqlite_backends: Backends, elsewhere: Backends, tmp_path: Path
) -> None:
    job_id = started_job(sqlite_backends, 1)
    deadline_ms = get_job(sqlite_backends.database, job_id).deadline_ms
    take_backup(sqlite_backends, tmp_path / "backup")
    manifest_file = tmp_path / "backup" / MANIFEST
    at_ms = read_manifest(tmp_path / "backup").at_ms
    manifest_file.write_text(manifest_file.read_text().replace(str(at_ms), str(at_ms - DAY_MS)))
    restore_backup(elsewhere, tmp_path / "backup")
    assert get_job(elsewhere.database, job_id).deadline_ms - deadline_ms >= DAY_MS


def test_keys_secrets_and_the_audit_trail_come_along(
    backends: Backends, elsewhere: Backends, tmp_path: Path
) -> None:
    secret = create_key(backends.database, tenant="local", name="mine", role=Role.ADMIN).secret
    signing = secret_key(backends.settings)
    take_backup(backends, tmp_path / "backup")
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    restore_backup(elsewhere, tmp_path / "backup")
    assert authenticate(elsewhere.database, secret) is not None
    assert secret_key(elsewhere.settings) == signing
    with elsewhere.database.write() as session:
        before = session.execute(select(func.count()).select_from(Audit)).scalar_one()
        audit(session, "local", "test.continued", "x")
    with elsewhere.database.read() as session:
        assert session.execute(select(func.count()).select_from(Audit)).scalar_one() == before + 1


def test_a_file_that_was_purged_in_between_is_no_fault(
    sqlite_backends: Backends, elsewhere: Backends, tmp_path: Path
) -> None:
    job_id = started_job(sqlite_backends, 1)
    other_id = started_job(sqlite_backends, 1)
    planned_key = get_job(sqlite_backends.database, other_id).planned_key
    assert planned_key is not None
    sqlite_backends.storage.delete(planned_key)
    manifest = take_backup(sqlite_backends, tmp_path / "backup")
    assert manifest.gone == [planned_key]
    restore_backup(elsewhere, tmp_path / "backup")
    run_to_the_end(elsewhere, job_id)


def test_a_backup_that_fails_leaves_nothing_that_looks_like_one(
    sqlite_backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_job(sqlite_backends, 1)

    def fail(*_: object) -> Iterator[bytes]:
        raise OSError("no space left")

    monkeypatch.setattr(sqlite_backends.storage, "stream", fail)
    with pytest.raises(OSError, match="no space left"):
        take_backup(sqlite_backends, tmp_path / "deep" / "backup")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_backup_never_replaces_anything(sqlite_backends: Backends, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    with pytest.raises(UserError, match="exists already"):
        take_backup(sqlite_backends, tmp_path / "backup")


@pytest.mark.parametrize("left", ["a job", "a key"])
def test_nothing_is_restored_over_something(
    sqlite_backends: Backends, backends: Backends, tmp_path: Path, left: str
) -> None:
    take_backup(sqlite_backends, tmp_path / "backup")
    if left == "a job":
        started_job(backends, 1)
    else:
        create_key(backends.database, tenant="local", name="mine", role=Role.READ)
    with pytest.raises(UserError, match="not empty"):
        restore_backup(backends, tmp_path / "backup")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no folder", "no backup"),
        ("no manifest", "no backup"),
        ("half a manifest", "cannot be read"),
        ("another format", "has the format 99"),
        ("a later revision", "later version"),
        ("no rows", "rows.db is missing"),
        ("an object is missing", "is missing"),
    ],
)
def test_what_is_no_whole_backup_is_refused_and_changes_nothing(
    sqlite_backends: Backends, elsewhere: Backends, tmp_path: Path, damage: str, message: str
) -> None:
    started_job(sqlite_backends, 1)
    folder = tmp_path / "backup"
    take_backup(sqlite_backends, folder)
    manifest = folder / MANIFEST
    text = manifest.read_text()
    match damage:
        case "no folder":
            shutil.rmtree(folder)
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_text(text[:40])
        case "another format":
            manifest.write_text(text.replace('"format": 1', '"format": 99'))
        case "a later revision":
            revision = read_manifest(folder).revision
            manifest.write_text(text.replace(f'"revision": "{revision}"', '"revision": "9999"'))
        case "no rows":
            (folder / ROWS).unlink()
        case "an object is missing":
            next((folder / OBJECTS / "planned").iterdir()).unlink()
    with pytest.raises(UserError, match=message):
        restore_backup(elsewhere, folder)
    elsewhere.database.migrate()
    with elsewhere.database.read() as session:
        assert session.execute(select(func.count()).select_from(Audit)).scalar_one() == 0


def test_a_lease_that_was_counted_often_is_counted_once_less(
    sqlite_backends: Backends, elsewhere: Backends, tmp_path: Path
) -> None:
    job_id = started_job(sqlite_backends, 2)
    leased(sqlite_backends, job_id)
    change_chunks(sqlite_backends, job_id, attempt=3)
    change_job(sqlite_backends, job_id, lane="urgent")
    take_backup(sqlite_backends, tmp_path / "backup")
    restore_backup(elsewhere, tmp_path / "backup")
    assert chunks_of(elsewhere, job_id)[0].attempt == 2
    assert get_job(elsewhere.database, job_id).lane == "urgent"
