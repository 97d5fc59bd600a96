"""What every test may ask for: settings, databases, storage, a broker. All of it real, none of it shared."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from celery import Celery

from config.celeryconfig import celery_settings
from config.settings import load_settings
from tasks.backends import Backends
from tasks.database import Database
from tests.postgresql import PostgresServer
from workers.embedded_redis import EmbeddedRedis

# The machine may be busy: slowness is not a fault of what is tested.
hypothesis.settings.register_profile(
    "gristmill", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("gristmill")

# A shell hands its background jobs an ignored SIGINT, which our children would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

MODELS = {
    "sim": {"source": "sim", "engine": "simulated"},
    "other": {"source": "other", "engine": "simulated"},
}


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the person who runs the tests, neither variables nor a file."""
    forget_outside_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)


def forget_outside_settings(environment: pytest.MonkeyPatch) -> None:
    """Remove the variables that would change what is tested."""
    for name in list(os.environ):
        if name.startswith(("GRISTMILL_", "AWS_")):
            environment.delenv(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the test process. Its absence is a failure."""
    with PostgresServer.running() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh, migrated SQLite database."""
    path = shutil.copy(sqlite_template, tmp_path / "gristmill.db")
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh, migrated database of each kind."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
    else:
        with request.getfixturevalue("postgres").new_database() as url:
            yield url


@pytest.fixture
def backends(database_url: str, tmp_path: Path) -> Iterator[Backends]:
    """What the domain works on, once on each kind of database."""
    yield from _open(database_url, tmp_path)


@pytest.fixture
def sqlite_backends(sqlite_url: str, tmp_path: Path) -> Iterator[Backends]:
    """What the domain works on, for tests of what is above it."""
    yield from _open(sqlite_url, tmp_path)


def _open(url: str, folder: Path) -> Iterator[Backends]:
    opened = Backends.open(
        load_settings(data_dir=folder, database_url=url, models=MODELS, default_model="sim", flush_s=0.02)
    )
    yield opened
    opened.database.close()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis-protocol server for the test process."""
    folder = tmp_path_factory.mktemp("redis")
    server = EmbeddedRedis(folder)
    server.start(folder / "redis.log")
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def _celery_app(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    # One for all tests: Celery keeps its connections by the broker's address.
    app = Celery("tests", set_as_current=False)
    with pytest.MonkeyPatch.context() as environment:
        forget_outside_settings(environment)
        settings = load_settings(data_dir=tmp_path_factory.mktemp("celery"), redis_url=redis_url)
    app.conf.update(celery_settings(settings))
    yield app
    app.pool.force_close_all()
    app.close()


@pytest.fixture
def celery_app(_celery_app: Celery) -> Celery:
    """An application of our settings on an empty broker."""
    with _celery_app.connection_for_write() as connection:
        connection.default_channel.client.flushall()
    return _celery_app
