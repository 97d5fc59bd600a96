"""Celery's settings, in one place, with the reason for each that is not the default."""

from typing import Any

from config.settings import Settings

SYSTEM_QUEUE = "system"

VISIBILITY_TIMEOUT_S = 120
"""Seconds after which Redis delivers an unacknowledged message again. The lease in the database makes a
second delivery harmless, so this only bounds how long a dead worker's chunk waits for the sweeper."""

BRPOP_TIMEOUT_S = 0.2
"""Seconds one blocking pop waits: how late a worker notices that it has room again."""


REDIS_TIMEOUT_S = 5.0
"""Seconds that a server which is there may take to connect or to answer, before it counts as away."""

PUBLISHER_TIMEOUT_S = 1.0
"""The same where somebody waits for it: the web server only publishes."""


def celery_settings(settings: Settings, redis_timeout_s: float = REDIS_TIMEOUT_S) -> dict[str, Any]:
    """Settings for every Celery process of this deployment."""
    return {
        "broker_url": settings.resolved_redis_url(),
        "broker_connection_retry_on_startup": True,
        # Forever: a worker that gives up would only be started again.
        "broker_connection_max_retries": None,
        "broker_connection_timeout": redis_timeout_s,
        "broker_transport_options": {
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            # Look for expired messages every few seconds; the defaults take a minute and a half.
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "polling_interval": BRPOP_TIMEOUT_S,
            "queue_order_strategy": "priority",
            "socket_keepalive": True,
            "socket_connect_timeout": redis_timeout_s,
            "socket_timeout": redis_timeout_s,
            # Publishing: one attempt. Celery's own loop keeps trying for whoever listens.
            "max_retries": 0,
            "health_check_interval": 10,
        },
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        "task_default_queue": SYSTEM_QUEUE,
        "task_publish_retry": False,
        "task_send_sent_event": False,
        "worker_send_task_events": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
    }
