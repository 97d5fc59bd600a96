"""Whether what a server needs can be had: ports, Redis, the database. Asked before anything is started."""

import socket
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy.exc import DBAPIError

from config.settings import Settings
from tasks.database import Database
from tasks.errors import UserError

CONNECT_S = 3.0


def free_port(host: str, port: int, setting: str) -> int:
    """The port, if nobody has it; of port 0 one that is free.

    Raises:
        UserError: it is taken, or the address is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"port {port} of {host} cannot be used: {error.strerror}. Stop what has it, or set {setting}",
                code="port_in_use",
            ) from error
        return int(probe.getsockname()[1])


def redis_client(settings: Settings) -> redis.Redis:
    """A client of the broker that the settings name, which says soon that it is not there."""
    # The Unix socket has one name with Celery and another with the client.
    url = settings.resolved_redis_url().replace("redis+socket:", "unix:", 1)
    return redis.Redis.from_url(
        url, socket_connect_timeout=CONNECT_S, socket_timeout=CONNECT_S, retry=Retry(NoBackoff(), 0)
    )


def must_reach_redis(settings: Settings) -> None:
    """Connect to the broker, where the settings name one.

    Raises:
        UserError: it does not answer.
    """
    if settings.redis_url is None:
        return
    client = redis_client(settings)
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        raise UserError(
            f"Redis at {_place(settings.resolved_redis_url())} cannot be reached: {error}. Start it, or "
            "change GRISTMILL_REDIS_URL; without it, a server is started for you",
            code="redis_unreachable",
        ) from error
    finally:
        client.close()


def migrated(settings: Settings) -> Database:
    """The database, at this version's tables.

    Raises:
        UserError: it cannot be opened.
    """
    url = settings.resolved_database_url()
    database = Database(url)
    try:
        database.migrate()
    except DBAPIError as error:
        raise UserError(
            f"the database {_place(url)} cannot be used: {error.orig}", code="database_unreachable"
        ) from error
    return database


def _place(url: str) -> str:
    """An URL without what is secret in it."""
    parts = urlsplit(url)
    if parts.hostname is None:
        return "/" + parts.path.lstrip("/")
    return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
