"""The engine worker: one Celery worker on threads and one engine in one process."""

import os
import secrets
import socket
from contextlib import suppress
from typing import Any

import structlog
from celery import signals
from celery.concurrency import get_implementation
from celery.exceptions import ImproperlyConfigured
from celery.worker import state as celery_state

from config.settings import Settings
from tasks.app import app
from tasks.backends import Backends
from tasks.dispatch import CHUNK_TASK, fill_runway, queue_name
from tasks.faults import DATABASE_AWAY, StorageFailed
from tasks.system import announce_complete
from tasks.tables import Lane
from workers.celery_pool import ChunkPool, chunk_pool, gated_cycle
from workers.chunk_runner import ChunkRunner
from workers.devices import detect_accelerator
from workers.engine import EngineDead, EngineUnavailable
from workers.engine_care import EngineCare
from workers.engine_host import EngineHost, make_engine
from workers.heartbeat import Heartbeat
from workers.pause import Pause
from workers.room import Holding, Room
from workers.watchdog import Watchdog

log = structlog.get_logger()

EXIT_ENGINE_DIED = 70
"""Exit status of a worker whose engine died under it: start another."""


@signals.worker_init.connect
def refuse_other_pools(sender: Any, **_: Any) -> None:
    """Stop a Celery worker that could take chunks but has no engine, before it takes one.

    Raises:
        ImproperlyConfigured: with the reason.
    """
    pool = get_implementation(sender.pool_cls)
    if issubclass(pool, ChunkPool):
        return
    name = pool.__module__.rpartition(".")[2]
    reason = {
        "prefork": "its processes are daemons, which may not start the processes that vLLM needs",
        "gevent": "its patched threads deadlock with the engine's event loop",
        "eventlet": "its patched threads deadlock with the engine's event loop",
    }.get(name, "only `gristmill worker` starts the engine that chunks run on")
    raise ImproperlyConfigured(f"the {name} pool cannot run an engine: {reason}. Use `gristmill worker`.")


def run_engine_worker(settings: Settings, model: str, devices: str | None = None) -> int:
    """Serve a model until told to stop; returns the process's exit status.

    SIGTERM and SIGINT finish what is in the engine and give back the rest; a second one gives back all.

    Raises:
        EngineStartFailed: with the engine's own message.
    """
    entry = settings.catalogue[model]
    # Pinned here, before anything imports torch.
    engine = make_engine(model, entry, str(settings.data_dir.absolute() / "models"), devices)
    host = EngineHost(engine, entry)
    log.info("engine_starting", model=model, engine=entry.engine)
    try:
        capacity = host.start()
        log.info("engine_ready", model=model, requests=capacity.requests, tokens=capacity.tokens)
        backends = Backends.open(settings)
        worker_id = f"{model}@{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        runner = ChunkRunner(backends, host, capacity.requests, worker_id)
        device_names = devices or ", ".join(detect_accelerator()[1])
        with Heartbeat(backends.database, engine, worker_id=worker_id, model=model, devices=device_names):
            return _consume(backends, model, runner, host, Room(capacity), worker_id)
    finally:
        host.close()
        log.info("engine_stopped", model=model)


def _consume(
    backends: Backends, model: str, runner: ChunkRunner, host: EngineHost, room: Room, worker_id: str
) -> int:
    holdings: dict[str, Holding] = {}
    care = EngineCare(host, room, runner.stopping, lambda: runner.results)
    pause = Pause(room, runner.stopping)

    @app.task(name=CHUNK_TASK, bind=True)
    def run_chunk(self: Any, job_id: str, seq: int, requests: int, tokens: int) -> None:  # noqa: ARG001
        care.wait()
        try:
            recorded = runner.run(job_id, seq, holdings[self.request.id])
        except EngineDead as error:
            log.error("engine_died", model=model, error=str(error))
            if not care.bring_back():
                runner.cut_off()
                celery_state.should_stop = EXIT_ENGINE_DIED
                room.on_open()
                return
        except (EngineUnavailable, StorageFailed, *DATABASE_AWAY) as error:
            pause.take(type(error).__name__)
        else:
            if recorded is not None:
                pause.is_over()
                if recorded.all_results_in:
                    announce_complete(job_id)
        # Without a database now, the sweeper does it later.
        with suppress(*DATABASE_AWAY):
            if not runner.stopping.is_set():
                fill_runway(app, backends, model)

    @signals.worker_shutting_down.connect(weak=False)
    def on_shutting_down(how: str, **_: Any) -> None:
        if how == "Warm":
            runner.stop()
        else:
            runner.cut_off()

    app.conf.broker_transport_options = {
        **app.conf.broker_transport_options,
        "queue_order_strategy": gated_cycle(room),
    }
    queues = [queue_name(model, lane) for lane in Lane]
    worker = app.Worker(
        hostname=worker_id,
        pool_cls=chunk_pool(room, holdings, runner.cut_off),
        concurrency=backends.settings.held_chunks,
        queues=queues,
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        loglevel=backends.settings.log_level,
    )

    @signals.worker_ready.connect(weak=False)
    def on_ready(sender: Any, **_: Any) -> None:
        # The thread that fetches messages sleeps while there is no room: wake it.
        room.on_open = lambda: sender.hub.call_soon(lambda: None)
        fill_runway(app, backends, model)

    with Watchdog(app, queues, lambda: room.is_open and len(holdings) < backends.settings.held_chunks):
        worker.start()
    return int(worker.exitcode or 0)
