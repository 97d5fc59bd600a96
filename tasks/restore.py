"""A backup into an empty database: work goes on where it was, as if no time had passed."""

import shutil
import tempfile
from pathlib import Path

import msgspec
from sqlalchemy import Connection, case, func, select, update

from tasks.backends import Backends
from tasks.backup import FORMAT, MANIFEST, OBJECTS, ROWS, SECRET_FILES, SECRETS, Manifest, Tell, named_objects
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import UserError
from tasks.row_copy import copied_tables, copy_rows
from tasks.storage import Storage, StoredObjectMissing
from tasks.tables import FINAL_STATUSES, Chunk, ChunkState, Job, JobStatus


def read_manifest(folder: Path) -> Manifest:
    """What the backup in this folder has.

    Raises:
        UserError: there is none, it is not whole, or a later version made it.
    """
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        raise UserError(f"{folder} is no backup: it has no {MANIFEST}.") from error
    except msgspec.MsgspecError as error:
        raise UserError(f"{folder / MANIFEST} cannot be read: {error}.") from error
    if manifest.format != FORMAT:
        raise UserError(f"The backup has the format {manifest.format}, and this version knows {FORMAT}.")
    if not (folder / ROWS).is_file():
        raise UserError(f"The backup is broken: {ROWS} is missing.")
    return manifest


def restore_backup(backends: Backends, folder: Path, tell: Tell = lambda _: None) -> Manifest:
    """Fill an empty database and its storage from a backup; all or nothing of the rows.

    What was running is taken up again: chunks that a worker had, or that were on the runway, wait anew, and
    deadlines move by the time that has passed.

    Raises:
        UserError: the database has something in it, or the backup is not fit.
    """
    manifest = read_manifest(folder)
    backends.database.migrate()
    _must_be_empty(backends.database)
    # The copy is brought to this version's tables, and a backup does not change by being read.
    with tempfile.TemporaryDirectory(prefix="gristmill-restore-") as work:
        rows = Path(shutil.copy(folder / ROWS, work))
        copy = Database(f"sqlite:///{rows}")
        try:
            if manifest.revision not in copy.known_revisions():
                raise UserError("A later version of Gristmill made the backup.")
            copy.migrate()
            with copy.snapshot() as source:
                # First, so that no row ever names what is not there.
                _copy_objects(source, folder / OBJECTS, backends.storage, manifest, tell)
                with backends.database.load() as target:
                    copy_rows(source, target, lambda table, count: tell(f"{table}: {count:,} rows"))
                    _take_up_again(target, manifest.at_ms)
        finally:
            copy.close()
    _copy_secrets(folder / SECRETS, backends.settings.data_dir)
    return manifest


def _must_be_empty(database: Database) -> None:
    with database.read() as session:
        for table in copied_tables():
            count = session.execute(select(func.count()).select_from(table)).scalar_one()
            if count:
                raise UserError(
                    f"The database is not empty ({count:,} {table.name}): restore into a new one."
                )


def _copy_objects(rows: Connection, folder: Path, storage: Storage, manifest: Manifest, tell: Tell) -> None:
    kept = Storage(folder.absolute().as_uri())
    gone = set(manifest.gone)
    count = 0
    for key in named_objects(rows):
        if key in gone:
            continue
        try:
            storage.put(key, kept.stream(key))
        except StoredObjectMissing as error:
            raise UserError(f"The backup is broken: {key} is missing.") from error
        count += 1
        tell(f"files: {count:,} of {manifest.objects:,}")


def _take_up_again(target: Connection, at_ms: int) -> None:
    held = Chunk.state == ChunkState.LEASED
    target.execute(
        update(Chunk)
        .where(Chunk.state.in_([ChunkState.LEASED, ChunkState.QUEUED]))
        .values(
            # Its worker did not fail, it is not here.
            attempt=case((held & (Chunk.attempt > 0), Chunk.attempt - 1), else_=Chunk.attempt),
            state=ChunkState.PENDING,
            lease_owner=None,
            lease_expires_ms=None,
            queued_ms=None,
        )
    )
    target.execute(
        update(Job)
        .where(Job.status == JobStatus.VALIDATING)
        .values(intake_expires_ms=None, intake_attempts=0)
    )
    passed_ms = max(0, target.execute(select(now_ms())).scalar_one() - at_ms)
    target.execute(
        update(Job).where(Job.status.not_in(FINAL_STATUSES)).values(deadline_ms=Job.deadline_ms + passed_ms)
    )


def _copy_secrets(folder: Path, data_dir: Path) -> None:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in SECRET_FILES:
        if (folder / name).is_file():
            copied = Path(shutil.copy(folder / name, data_dir / name))
            copied.chmod(0o600)
