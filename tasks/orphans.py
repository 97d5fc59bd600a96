"""Objects in storage that no row names: left by processes that died between the one and the other."""

from collections.abc import Iterator

import structlog
from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute

from tasks.backends import Backends
from tasks.tables import File, Job, UploadPart

log = structlog.get_logger()

ORPHAN_AGE_S = 86_400.0
"""An object is written before its row: what is young may get one yet."""

_Column = InstrumentedAttribute[str | None] | InstrumentedAttribute[str]

NAMED_BY: dict[str, _Column] = {
    "planned/": Job.planned_key,
    "files/": File.storage_key,
    "parts/": UploadPart.storage_key,
}
"""Prefix of the objects' keys to the column that names them."""


def find_orphans(backends: Backends, older_than_s: float = ORPHAN_AGE_S) -> Iterator[tuple[str, int]]:
    """Objects that nothing names and that are older than this: key, and size in bytes."""
    for prefix, column in NAMED_BY.items():
        for page in backends.storage.objects(prefix, older_than_s):
            with backends.database.read() as session:
                named = set(session.scalars(select(column).where(column.in_(page))))
            yield from ((key, size) for key, size in page.items() if key not in named)


def remove_orphans(backends: Backends, older_than_s: float = ORPHAN_AGE_S) -> int:
    """Remove them, and what writers that were killed left behind; returns how many."""
    removed = backends.storage.drop_unfinished(older_than_s)
    for key, _ in find_orphans(backends, older_than_s):
        backends.storage.delete(key)
        removed += 1
    if removed:
        log.info("orphans_removed", objects=removed)
    return removed
