"""All settings in one typed object, read from GRISTMILL_* variables and gristmill.toml."""

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as UnreadableSetting

from config.catalogue import BUILTIN_MODELS, DEFAULT_MODEL, ModelEntry

ENV_PREFIX = "GRISTMILL_"
CONFIG_VARIABLE = "GRISTMILL_CONFIG"
DEFAULT_CONFIG_FILE = Path("gristmill.toml")

PositiveInt = Annotated[int, Field(ge=1)]
PositiveSeconds = Annotated[float, Field(gt=0)]


LEAST_RENEWALS = 3
"""Chances to renew a lease before it expires."""


class SettingsError(Exception):
    """The settings are wrong; the message lists every problem."""


class Settings(BaseSettings):
    """Everything that can differ between two deployments.

    Values come from `GRISTMILL_<NAME>` variables first, then from `gristmill.toml`
    (or the file that `GRISTMILL_CONFIG` names), then from the defaults below.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    data_dir: Path = Path("gristmill-data")
    """Folder for the database, stored files, logs and built models of a single machine."""
    database_url: SecretStr | None = None
    """SQLAlchemy URL, `sqlite:///...` or `postgresql+psycopg://...`. Unset: SQLite in the data folder."""
    redis_url: SecretStr | None = None
    """Redis or Valkey URL. Unset: `gristmill run` starts an embedded server."""
    storage_url: str | None = None
    """Object storage, `file:///...`, `s3://bucket/prefix`, `gs://...`. Unset: a folder in the data folder."""
    storage_options: dict[str, SecretStr] = {}
    """Options of the object store by obstore's names, for example `aws_endpoint` and `aws_access_key_id`."""

    default_model: str = DEFAULT_MODEL
    """Model of jobs that name none."""
    models: dict[str, ModelEntry] = {}
    """The catalogue: served name to entry. Adds to the built-in models."""

    max_line_bytes: PositiveInt = 8 * 2**20
    """Longest input line, in bytes."""
    max_requests: PositiveInt = 10_000_000
    """Most requests in one job."""
    max_file_bytes: PositiveInt = 64 * 2**30
    """Largest input file, in bytes."""
    file_expires_s: PositiveSeconds = 30 * 86_400.0
    """Seconds that input files of jobs are kept, unless an upload says otherwise."""
    job_expires_s: PositiveSeconds | None = None
    """Seconds after its end after which a job is deleted, with its results. Unset: never."""
    max_listed_errors: PositiveInt = 100
    """Faulty lines a failed job lists."""

    chunk_requests: Annotated[int, Field(ge=1, le=4096)] = 256
    """Most requests in a chunk."""
    chunk_tokens: PositiveInt = 131_072
    """Most estimated tokens (prompt and output) in a chunk, unless one request alone has more."""
    runway_chunks: PositiveInt = 16
    """Chunks per model that wait on the queues at one time; all others wait in the database."""
    held_chunks: Annotated[int, Field(ge=2, le=256)] = 32
    """Most chunks one worker holds at a time."""
    max_attempts: Annotated[int, Field(ge=3)] = 4
    """Times a request may be started and take the engine with it. The last two starts run it alone."""
    lease_s: PositiveSeconds = 30.0
    """Seconds a worker's claim on a chunk lasts without renewal."""
    flush_s: PositiveSeconds = 1.0
    """Seconds between two writes of finished results."""
    tick_s: PositiveSeconds = 1.0
    """Seconds between two passes of dispatch and sweeper."""
    job_window_s: PositiveSeconds = 24 * 3600.0
    """Seconds after which an unfinished job expires, unless it says otherwise."""
    drain_s: PositiveSeconds = 30.0
    """Seconds a stopping worker may use to finish what is in its engine."""

    web_host: str = "127.0.0.1"
    """Address the web server listens on. Any other than loopback opens it to the network."""
    web_port: Annotated[int, Field(ge=0, le=65535)] = 8800
    """Port of the web server."""
    web_threads: PositiveInt = 32
    """Requests one web process answers at a time; a client that waits or watches holds one."""
    web_processes: PositiveInt = 2
    """Processes of the web server."""
    web_behind_proxy: bool = False
    """A reverse proxy with TLS is in front: believe its X-Forwarded-* headers, and mark cookies as secure."""
    secret_key: SecretStr | None = None
    """Signs sessions and login links; the same for all web processes. Unset: made in the data folder."""
    sync_timeout_s: PositiveSeconds = 120.0
    """Longest wait for the answer of one request that is sent to `/v1/chat/completions` and its kind."""
    flower_port: Annotated[int, Field(ge=0, le=65535)] = 5555
    """Port of Flower, which listens on `web_host`."""

    server_url: str = "http://127.0.0.1:8800"
    """Where `gristmill submit` and its kind find a running server."""
    api_key: SecretStr | None = None
    """The key that they send."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe level that is logged."""
    log_format: Literal["console", "json"] = "console"
    """How log records are written."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order of precedence: arguments, environment, file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, _read_config_file())

    @property
    def catalogue(self) -> dict[str, ModelEntry]:
        """Served name to entry, built-in models included."""
        return {**BUILTIN_MODELS, **self.models}

    @property
    def web_host_in_urls(self) -> str:
        """`web_host` as it stands in an address, where IPv6 needs brackets."""
        return f"[{self.web_host}]" if ":" in self.web_host else self.web_host

    def resolved_database_url(self) -> str:
        """The URL to connect to; it may hold a password: never log it."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir.absolute() / 'gristmill.db'}"

    def resolved_storage_url(self) -> str:
        """Where files are kept, as an object store URL."""
        return self.storage_url or (self.data_dir.absolute() / "storage").as_uri()

    def resolved_redis_url(self) -> str:
        """The broker's URL; it may hold a password: never log it.

        Raises:
            SettingsError: no broker is set.
        """
        if self.redis_url is None:
            raise SettingsError("redis_url is not set: set GRISTMILL_REDIS_URL, or use `gristmill run`")
        return self.redis_url.get_secret_value()


def _read_config_file() -> dict[str, object]:
    named = os.environ.get(CONFIG_VARIABLE)
    path = Path(named) if named else DEFAULT_CONFIG_FILE
    if not path.is_file():
        if named:
            raise SettingsError(f"{CONFIG_VARIABLE} names {path}, which is not a file")
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error


def _unknown_variables() -> list[str]:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG_VARIABLE}
    return [
        f"{name}: no such setting"
        for name in sorted(os.environ)
        if name.startswith(ENV_PREFIX) and name.split("__")[0] not in known
    ]


def load_settings(**overrides: object) -> Settings:
    """Read the settings and check all of them.

    Raises:
        SettingsError: with one line for every problem found.
    """
    problems = _unknown_variables()
    try:
        settings = Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            problems.append(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}")
    except UnreadableSetting as error:
        problems.append(f"{error}: {error.__cause__}" if error.__cause__ else str(error))
    else:
        if settings.flush_s * LEAST_RENEWALS > settings.lease_s:
            # A lease is renewed with each flush.
            problems.append(f"lease_s: must be at least {LEAST_RENEWALS} times flush_s, which renews it")
        if settings.default_model not in settings.catalogue:
            problems.append(f"default_model: {settings.default_model!r} is not in the catalogue")
        if not problems:
            return settings
    raise SettingsError("the settings have problems:\n" + "\n".join(f"  {line}" for line in problems))


@cache
def get_settings() -> Settings:
    """The process's settings, read once."""
    return load_settings()
