"""The Celery application that every process shares."""

from contextlib import suppress
from typing import Any, Self

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Connection

from config.celeryconfig import REDIS_TIMEOUT_S, celery_settings
from config.settings import Settings, get_settings

RECONNECT = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2.0}
"""Seconds between two attempts of a worker: the first, by how much they grow, the longest."""

_chosen: list[tuple[Settings, float]] = []


def use_settings(settings: Settings, redis_timeout_s: float = REDIS_TIMEOUT_S) -> None:
    """Configure the application from these settings instead of the process's own; before its first use."""
    _chosen[:] = [(settings, redis_timeout_s)]


def _configuration() -> dict[str, Any]:
    return celery_settings(*_chosen[0]) if _chosen else celery_settings(get_settings())


class _Connection(Connection):
    """A worker looks for a broker that is away every second or two, not ever more seldom."""

    def ensure_connection(self, *arguments: Any, **named: Any) -> Self:
        return super().ensure_connection(*arguments, **{**RECONNECT, **named})

    def release(self) -> None:
        """Close it, also when Redis is gone.

        kombu 5.7 then gives unacknowledged messages back through a transport that it has dropped a moment
        before, and the worker would end of that. Nothing is lost without: whoever holds a chunk goes on.
        """
        with suppress(AttributeError):
            super().release()

    close = release


class _Broker(AMQP):
    Connection = _Connection


app = Celery("gristmill", set_as_current=False, amqp=_Broker)
# Evaluated at the first use, so that importing this module needs no settings.
app.add_defaults(_configuration)
