"""A consistent copy of everything, taken while everything runs: rows first, then the bytes that they name.

An object never changes once a row names it, so copying it later is as good as at once. One that is gone by
then was removed after the rows were read, because nobody needed it any more. Redis holds nothing to keep.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from sqlalchemy import Connection, select

from tasks.backends import Backends
from tasks.clock import now_ms
from tasks.database import Database
from tasks.errors import UserError
from tasks.row_copy import copy_rows
from tasks.storage import Storage, StoredObjectMissing
from tasks.tables import File, Job, UploadPart

FORMAT = 1
"""Of the backup's folder, not of its tables, which have a revision of their own."""

MANIFEST = "manifest.json"
ROWS = "rows.db"
OBJECTS = "objects"
SECRETS = "secrets"

SECRET_FILES = ("secret_key", "flower_password")
"""Files of the data folder that a single machine made for itself."""


class Manifest(msgspec.Struct):
    """What is in a backup; written last, so that half a backup has none."""

    format: int
    revision: str
    """Of the tables."""
    at_ms: int
    """The moment that it shows, by the database's clock."""
    rows: dict[str, int]
    objects: int
    object_bytes: int
    gone: list[str]
    """Objects that were removed while it was taken."""


Tell = Callable[[str], None]


def take_backup(backends: Backends, folder: Path, tell: Tell = lambda _: None) -> Manifest:
    """Copy the database's rows and all that they name in storage into a new folder.

    Raises:
        UserError: there is something at that place already.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already: name a new folder.")
    # Under another name until it is whole.
    draft = folder.with_name(f"{folder.name}.incomplete-{os.getpid()}")
    draft.mkdir(parents=True, mode=0o700)
    try:
        manifest = _fill(backends, draft, tell)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return manifest


def _fill(backends: Backends, draft: Path, tell: Tell) -> Manifest:
    copy = Database(f"sqlite:///{draft / ROWS}")
    try:
        copy.migrate()
        with backends.database.snapshot() as source, copy.load() as target:
            at_ms = source.execute(select(now_ms())).scalar_one()
            rows = copy_rows(source, target, lambda table, count: tell(f"{table}: {count:,} rows"))
        with copy.snapshot() as source:
            objects, object_bytes, gone = _copy_objects(source, backends.storage, draft / OBJECTS, tell)
        revision = copy.revision()
    finally:
        copy.close()
    _copy_secrets(backends.settings.data_dir, draft / SECRETS)
    manifest = Manifest(FORMAT, revision, at_ms, rows, objects, object_bytes, gone)
    (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


def named_objects(rows: Connection) -> Iterator[str]:
    """Keys of all objects that rows name."""
    for column in (File.storage_key, Job.planned_key, UploadPart.storage_key):
        query = select(column).where(column.is_not(None)).execution_options(yield_per=1_000)
        for key in rows.execute(query).scalars():
            assert key is not None
            yield key


def _copy_objects(rows: Connection, storage: Storage, folder: Path, tell: Tell) -> tuple[int, int, list[str]]:
    copy = Storage(folder.absolute().as_uri())
    count = size = 0
    gone: list[str] = []
    for key in named_objects(rows):
        try:
            size += copy.put(key, storage.stream(key))[0]
            count += 1
            tell(f"files: {count:,}, {size / 1e6:,.1f} MB")
        except StoredObjectMissing:
            gone.append(key)
    return count, size, gone


def _copy_secrets(data_dir: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for name in SECRET_FILES:
        if (data_dir / name).is_file():
            copied = Path(shutil.copy(data_dir / name, folder / name))
            copied.chmod(0o600)
