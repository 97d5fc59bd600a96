"""The Celery application that every process shares."""

from typing import Any

from celery import Celery

from config.celeryconfig import REDIS_TIMEOUT_S, celery_settings
from config.settings import Settings, get_settings
from tasks.broker import Broker

_chosen: list[tuple[Settings, float]] = []


def use_settings(settings: Settings, redis_timeout_s: float = REDIS_TIMEOUT_S) -> None:
    """Configure the application from these settings instead of the process's own; before its first use."""
    _chosen[:] = [(settings, redis_timeout_s)]


def _configuration() -> dict[str, Any]:
    return celery_settings(*_chosen[0]) if _chosen else celery_settings(get_settings())


app = Celery("gristmill", set_as_current=False, amqp=Broker)
# Evaluated at the first use, so that importing this module needs no settings.
app.add_defaults(_configuration)
