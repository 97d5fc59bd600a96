"""`gristmill doctor`: is everything here that Gristmill needs, and what to do where it is not."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import redis
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from config.settings import Settings
from tasks.database import Database
from tasks.errors import UserError
from tasks.storage import open_storage
from workers.data_folder import holder
from workers.devices import detect_accelerator
from workers.embedded_redis import RedisMissing, find_server, redis_version
from workers.hub import why_unavailable
from workers.reachable import free_port, redis_client
from workers.up_state import read_state

LEAST_FREE_GIB = 5.0


@dataclass(frozen=True)
class Finding:
    """The answer of one check."""

    name: str
    ok: bool
    detail: str
    """What was found; what to do when it is not well."""


class _Unwell(Exception):
    """A check failed; the message says what to do."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Run every check, one after the other; none stops those after it."""
    checks: dict[str, Callable[[Settings], str]] = {
        "data folder": _data_folder,
        "redis": _redis,
        "database": _database,
        "storage": _storage,
        "ports": _ports,
        "devices": _devices,
        "engine": _engine,
        "default model": _default_model,
    }
    for name, check in checks.items():
        try:
            yield Finding(name, True, check(settings))
        except (_Unwell, RedisMissing) as error:
            yield Finding(name, False, str(error))


def _data_folder(settings: Settings) -> str:
    folder = settings.data_dir.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".doctor-{uuid4().hex}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _Unwell(f"{folder} cannot be written ({error.strerror}): set GRISTMILL_DATA_DIR") from error
    free_gib = shutil.disk_usage(folder).free / 2**30
    if free_gib < LEAST_FREE_GIB:
        raise _Unwell(f"{folder} has {free_gib:.1f} GiB free: results may not fit, free some space")
    return f"{folder}, {free_gib:.0f} GiB free"


def _redis(settings: Settings) -> str:
    if settings.redis_url is None:
        return f"embedded, {redis_version(find_server())}"
    try:
        info = redis_client(settings).info()
    except (redis.RedisError, ValueError) as error:
        raise _Unwell(
            f"no answer ({type(error).__name__}): check GRISTMILL_REDIS_URL and that the server runs"
        ) from error
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise _Unwell(f"maxmemory-policy is {policy}: set it to noeviction, or messages vanish")
    return f"version {info.get('redis_version')}"


def _database(settings: Settings) -> str:
    try:
        database = Database(settings.resolved_database_url())
        with database.read() as session:
            session.execute(text("SELECT 1"))
    except (SQLAlchemyError, ImportError) as error:
        raise _Unwell(f"no answer ({type(error).__name__}): check GRISTMILL_DATABASE_URL") from error
    return "SQLite" if database.is_sqlite else "PostgreSQL"


def _storage(settings: Settings) -> str:
    storage = open_storage(settings)
    key, content = f"doctor/{uuid4().hex}", b"grain"
    try:
        storage.put(key, [content])
        same = storage.read_range(key, 1, 3) == content[1:4]
        storage.delete(key)
    except Exception as error:
        raise _Unwell(f"{storage.url}: {error}: check GRISTMILL_STORAGE_URL and its options") from error
    if not same:
        raise _Unwell(f"{storage.url} does not answer range reads")
    return storage.url


def _devices(_: Settings) -> str:
    accelerator, names = detect_accelerator()
    return f"{accelerator}: {', '.join(names)}"


def _engine(_: Settings) -> str:
    # In a process of its own: a broken build can end the process that imports it.
    code = "import vllm, vllm.v1.engine.async_llm; print(vllm.__version__)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return f"vLLM {answer.stdout.strip().splitlines()[-1]}"
    last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
    if "torchvision::nms" in answer.stderr:
        raise _Unwell(f"{last}: pip uninstall torchvision torchaudio torchcodec (text models need none)")
    if "No module named 'vllm'" in answer.stderr:
        raise _Unwell(
            "vLLM is not installed: pip install 'gristmill[gpu]', or 'gristmill[cpu]' without a GPU"
        )
    raise _Unwell(f"vLLM does not import: {last}")


def _default_model(settings: Settings) -> str:
    name = settings.default_model
    if reason := why_unavailable(settings.catalogue[name]):
        return f"{name} cannot be used ({reason}); the built-in 'tiny' stands in"
    return name


def _ports(settings: Settings) -> str:
    folder = settings.data_dir.absolute()
    pid, state = holder(folder), read_state(folder)
    if state is not None and state.pid == pid:
        return f"in use by process {pid}, the `gristmill up` of this data folder"
    ports = {"GRISTMILL_WEB_PORT": settings.web_port, "GRISTMILL_FLOWER_PORT": settings.flower_port}
    try:
        for setting, port in ports.items():
            free_port(settings.web_host, port, setting)
    except UserError as error:
        raise _Unwell(str(error)) from error
    return f"web server {settings.web_port}, Flower {settings.flower_port}: free"
