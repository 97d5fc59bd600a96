"""Faults of the machine under the work: a database, a disk or a store that does not do what it should now."""

import errno
import sqlite3

from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tasks.errors import MachineError

MACHINE_FAULTS = (MachineError, SQLAlchemyError, OSError)
"""What must not stop a sweep: one thing's trouble is logged, and the others go on."""

DATABASE_AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""The database did not do it and may do it later: gone, locked, read-only, full, out of connections. Not
among them is what it would refuse again."""

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_SQLSTATES = frozenset({"53100"})
"""PostgreSQL's `disk_full`."""


class StorageFailed(MachineError):
    """Storage did not do it, and may do it later."""


class StorageFull(StorageFailed):
    """There is no room left in storage."""


def is_full(error: BaseException) -> bool:
    """Whether this fault means that a disk has no room left."""
    if isinstance(error, StorageFull):
        return True
    if isinstance(error, DBAPIError):
        cause = error.orig
        if isinstance(cause, sqlite3.Error):
            return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return getattr(cause, "sqlstate", None) in _FULL_SQLSTATES
    return isinstance(error, OSError) and error.errno in _FULL_ERRNOS
