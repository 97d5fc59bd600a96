"""What is done to a mill under test. Each fault returns when it is over and its cause is gone."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.celeryconfig import SYSTEM_QUEUE
from tasks.dispatch import queue_name
from tasks.tables import Lane
from tests.chaos.databases import POSTGRESQL, SQLITE, PostgresUnderTest, SqliteUnderTest
from tests.chaos.mill import MODEL, SETTINGS, Mill
from tests.chaos.object_store import LONGEST_STOP_S, S3

SYSTEM = ("system-1", "system-2")
ENGINES = ("engine-1", "engine-2")
WEB = ("web",)

SHORTEST_FREEZE_S = SETTINGS["lease_s"] / 2
LONGEST_FREEZE_S = 2 * SETTINGS["lease_s"]
"""Most are so long that leases run out under a process that comes back."""

QUEUES = (SYSTEM_QUEUE, *(queue_name(MODEL, lane) for lane in Lane))


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    apply: Callable[[Mill, Random], None]
    weight: int = 1
    """How often it is drawn, against the others."""
    longest_s: float = 0.5
    """How long it may take, until its cause is gone."""
    on: str | None = None
    """The only kind of database or object store that it is for; null: any."""


def _kill(parts: tuple[str, ...]) -> Callable[[Mill, Random], None]:
    return lambda mill, random: mill.parts[random.choice(parts)].send(signal.SIGKILL)


def _terminate(parts: tuple[str, ...]) -> Callable[[Mill, Random], None]:
    return lambda mill, random: mill.parts[random.choice(parts)].send(signal.SIGTERM)


def _freeze(parts: tuple[str, ...]) -> Callable[[Mill, Random], None]:
    def freeze(mill: Mill, random: Random) -> None:
        part = mill.parts[random.choice(parts)]
        part.freeze(random.uniform(SHORTEST_FREEZE_S, LONGEST_FREEZE_S))

    return freeze


def kill_web_child(mill: Mill, random: Random) -> None:
    """The process that answers, under the one that listens."""
    mill.parts["web"].kill_child()


def kill_all(mill: Mill, random: Random) -> None:
    """Every process of the mill's own at once."""
    for part in mill.parts.values():
        part.send(signal.SIGKILL, to_group=True)


def wrong_clock(mill: Mill, random: Random) -> None:
    """One engine worker or system worker comes back with its clock an hour off, or right again."""
    part = mill.parts[random.choice((SYSTEM[1], ENGINES[1]))]
    part.clock_offset_s = random.choice((-3600, 3600)) if part.clock_offset_s == 0 else 0
    part.send(signal.SIGTERM)


def restart_redis(mill: Mill, random: Random) -> None:
    """Redis is killed and comes back with what is in its append-only file."""
    mill.kill_redis(random.uniform(0, 2))


def freeze_redis(mill: Mill, random: Random) -> None:
    """Redis holds its connections and answers nothing."""
    pid = mill.redis.child.pid if mill.redis.child else None
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(random.uniform(0.5, LONGEST_FREEZE_S))
        finally:
            os.kill(pid, signal.SIGCONT)


def forget_redis(mill: Mill, random: Random) -> None:
    """Redis loses everything."""
    with _redis(mill) as client:
        client.flushall()


def repeat_messages(mill: Mill, random: Random) -> None:
    """Every message that waits or is being worked on comes a second time."""
    with _redis(mill) as client:
        for queue in QUEUES:
            if messages := client.lrange(queue, 0, -1):
                client.lpush(queue, *messages)
        for held in client.hvals("unacked"):
            message, _, queue = json.loads(held)
            client.lpush(queue, json.dumps(message))


def lock_sqlite(mill: Mill, random: Random) -> None:
    """Another writer holds the database."""
    assert isinstance(mill.database, SqliteUnderTest)
    mill.database.lock(random.uniform(0.5, LONGEST_FREEZE_S))


def restart_postgres(mill: Mill, random: Random) -> None:
    """PostgreSQL crashes and comes back."""
    assert isinstance(mill.database, PostgresUnderTest)
    mill.database.restart()


def cut_connections(mill: Mill, random: Random) -> None:
    """All connections to PostgreSQL break, most of them in the middle of something."""
    assert isinstance(mill.database, PostgresUnderTest)
    mill.database.cut_connections()


def slow_storage(mill: Mill, random: Random) -> None:
    """The object store answers now and then."""
    assert mill.object_store is not None
    mill.object_store.be_slow(random.uniform(0.5, LONGEST_FREEZE_S), random)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill_web", _kill(WEB)),
        Fault("kill_web_child", kill_web_child),
        Fault("kill_system", _kill(SYSTEM), 2),
        Fault("kill_engine", _kill(ENGINES), 3),
        Fault("kill_all", kill_all),
        Fault("term_web", _terminate(WEB)),
        Fault("term_system", _terminate(SYSTEM)),
        Fault("term_engine", _terminate(ENGINES), 2),
        Fault("freeze_web", _freeze(WEB), 1, LONGEST_FREEZE_S),
        Fault("freeze_system", _freeze(SYSTEM), 1, LONGEST_FREEZE_S),
        Fault("freeze_engine", _freeze(ENGINES), 2, LONGEST_FREEZE_S),
        Fault("wrong_clock", wrong_clock),
        Fault("restart_redis", restart_redis, 1, 3.0),
        Fault("freeze_redis", freeze_redis, 1, LONGEST_FREEZE_S),
        Fault("forget_redis", forget_redis, 2),
        Fault("repeat_messages", repeat_messages, 2),
        Fault("lock_sqlite", lock_sqlite, 2, LONGEST_FREEZE_S, SQLITE),
        Fault("restart_postgres", restart_postgres, 1, 10.0, POSTGRESQL),
        Fault("cut_connections", cut_connections, 3, 0.5, POSTGRESQL),
        Fault("slow_storage", slow_storage, 2, LONGEST_FREEZE_S + LONGEST_STOP_S, S3),
    )
}


@contextlib.contextmanager
def _redis(mill: Mill) -> Any:
    """A client for one fault; a server that is away just now has no messages either."""
    path = mill.redis.url.removeprefix("redis+socket://")
    client = redis.Redis(unix_socket_path=path, socket_timeout=2, retry=Retry(NoBackoff(), 0))
    try:
        with contextlib.suppress(redis.RedisError):
            yield client
    finally:
        client.close()
