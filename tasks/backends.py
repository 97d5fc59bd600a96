"""What every step of the domain works on: the settings, the database and the storage of this process."""

from dataclasses import dataclass
from functools import cache
from typing import Self

from config.settings import Settings, get_settings
from tasks.database import Database
from tasks.storage import Storage, open_storage


@dataclass(frozen=True)
class Backends:
    """One set per process."""

    settings: Settings
    database: Database
    storage: Storage

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Connect lazily to what the settings name; does not migrate."""
        return cls(settings, Database(settings.resolved_database_url()), open_storage(settings))


@cache
def backends() -> Backends:
    """The process's own set."""
    return Backends.open(get_settings())
