"""Objects in storage that no row names: left by processes that died between the one and the other."""

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


def remove_orphans(backends: Backends, older_than_s: float = ORPHAN_AGE_S) -> int:
    """Remove objects that nothing names and that are older than this; returns how many."""
    removed = backends.storage.drop_unfinished(older_than_s)
    for prefix, column in NAMED_BY.items():
        for keys in backends.storage.keys(prefix, older_than_s):
            for key in _unnamed(backends, column, keys):
                backends.storage.delete(key)
                removed += 1
    if removed:
        log.info("orphans_removed", objects=removed)
    return removed


def _unnamed(backends: Backends, column: _Column, keys: list[str]) -> set[str]:
    with backends.database.read() as session:
        return set(keys) - set(session.scalars(select(column).where(column.in_(keys))))
