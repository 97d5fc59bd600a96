"""Messages to the queues: sent in a moment, or left to the sweeper.

Whatever a message would start is in the database before, so a broker that is away costs time and no work. It
must not cost the sender's time as well: one attempt, bounded by `config.celeryconfig`, and after a failure
none at all for a while.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import structlog
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from tasks.errors import MachineError

log = structlog.get_logger()

AWAY_S = 3.0
"""How long nothing is sent after a failure."""


@dataclass(frozen=True)
class Message:
    """One call of a Celery task."""

    task: str
    args: tuple[Any, ...]
    queue: str
    shown: str
    """What Flower and Celery's own tools show in place of the arguments."""


class BrokerAway(MachineError):
    """The broker does not answer."""


_away_until: WeakKeyDictionary[Celery, float] = WeakKeyDictionary()
"""Application to the moment from which on its broker is tried again."""


def broker_is_away(app: Celery) -> bool:
    """Whether sending failed a moment ago, so that it is not tried now."""
    return time.monotonic() < _away_until.get(app, 0.0)


def waiting_messages(app: Celery, queue: str) -> int:
    """Messages on a queue of the broker.

    Raises:
        BrokerAway: it does not answer.
    """
    try:
        with app.connection_for_write() as connection:
            return int(connection.default_channel.client.llen(queue))
    except (OperationalError, RedisError, OSError) as error:
        _away_until[app] = time.monotonic() + AWAY_S
        raise BrokerAway(str(error)) from error


def send(app: Celery, messages: Sequence[Message]) -> bool:
    """Send messages in order; whether all of them are with the broker now. Never raises for its absence."""
    if not messages:
        return True
    if broker_is_away(app):
        return False
    try:
        with app.producer_or_acquire() as producer:
            for message in messages:
                app.send_task(
                    message.task,
                    args=message.args,
                    argsrepr=message.shown,
                    queue=message.queue,
                    producer=producer,
                )
    except (OperationalError, OSError) as error:
        _away_until[app] = time.monotonic() + AWAY_S
        log.warning("publish_failed", messages=len(messages), error=type(error).__name__)
        return False
    return True
