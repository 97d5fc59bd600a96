"""The connection to the broker, mended where Celery 5.7 and kombu 5.7 end or delay a worker that lost it."""

from typing import Any, Self

from celery.app.amqp import AMQP
from kombu import Connection
from kombu.transport import redis as kombu_redis
from redis.exceptions import ConnectionError as ConnectionLost

RECONNECT = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2.0}
"""Seconds between two attempts of a worker: the first, by how much they grow, the longest."""


class _Channel(kombu_redis.Channel):
    """Says that a closed connection is closed.

    A worker that lost Redis closes its connection while tasks run. When they end, they acknowledge on it, and
    closing it gives unacknowledged messages back on it: kombu then fails with an AttributeError, which ends
    the worker, instead of the error that everybody expects. Nothing is lost: who holds a chunk goes on.
    """

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        if self.connection.client is None:
            raise ConnectionLost("the connection to the broker is closed")
        parameters: dict[str, Any] = super()._connparams(asynchronous)
        return parameters


class _Transport(kombu_redis.Transport):
    Channel = _Channel


class _Connection(Connection):
    """A worker looks for a broker that is away every second or two, not ever more seldom."""

    def ensure_connection(self, *arguments: Any, **named: Any) -> Self:
        return super().ensure_connection(*arguments, **{**RECONNECT, **named})

    def get_transport_cls(self) -> type:
        chosen: type = super().get_transport_cls()
        return _Transport if chosen is kombu_redis.Transport else chosen


class Broker(AMQP):
    """What Celery makes connections with."""

    Connection = _Connection
