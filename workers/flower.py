"""Flower, the Celery view: read-only, and never without a password."""

import contextlib
import os
import threading
import time

import httpx

from config.settings import Settings
from tasks.app import app
from tasks.secret_file import secret_in_file

FLOWER_USER = "gristmill"
FORGET_WORKER_S = 60
MOST_TASKS = 5_000
"""Tasks that it keeps in memory and shows."""
ASK_AGAIN_S = 10.0


def flower_password(settings: Settings) -> str:
    """The password, made once in the data folder."""
    return secret_in_file(settings.data_dir, "flower_password", 18)


def run_flower(settings: Settings) -> None:
    """Serve Flower on `web_host`:`flower_port` until stopped."""
    # By the environment, because everybody on a machine can read a process's arguments.
    os.environ["FLOWER_BASIC_AUTH"] = f"{FLOWER_USER}:{flower_password(settings)}"
    threading.Thread(target=_ask_for_queues, args=(settings,), name="ask-for-queues", daemon=True).start()
    app.start(
        [
            "flower",
            f"--address={settings.web_host}",
            f"--port={settings.flower_port}",
            "--read_only=True",
            f"--purge_offline_workers={FORGET_WORKER_S}",
            f"--max_tasks={MOST_TASKS}",
            "--tasks_columns=name,state,args,kwargs,received,runtime,worker",
        ]
    )


def _ask_for_queues(settings: Settings) -> None:
    """Have Flower ask the workers for their queues again and again; by itself it asks once, at its start."""
    url = f"http://{settings.web_host_in_urls}:{settings.flower_port}/api/workers"
    user = (FLOWER_USER, flower_password(settings))
    while True:
        time.sleep(ASK_AGAIN_S)
        with contextlib.suppress(httpx.TransportError):
            httpx.get(url, params={"refresh": "1"}, auth=user, timeout=ASK_AGAIN_S)
