"""A worker's sign of life in the database, with its engine's figures."""

import os
import socket
import threading
from dataclasses import asdict
from types import TracebackType
from typing import Self

import structlog
from sqlalchemy import delete, select, update
from sqlalchemy.exc import SQLAlchemyError

from tasks.clock import now_ms
from tasks.database import Database
from tasks.tables import Worker
from workers.engine import Engine

log = structlog.get_logger()

PERIOD_S = 2.0


class Heartbeat:
    """Writes the worker's row every `PERIOD_S` seconds while the block runs, and removes it at its end."""

    def __init__(
        self, database: Database, engine: Engine, *, worker_id: str, model: str, devices: str
    ) -> None:
        self._database = database
        self._engine = engine
        self._worker_id = worker_id
        self._model = model
        self._devices = devices
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        with self._database.write() as session:
            now = session.execute(select(now_ms())).scalar_one()
            session.merge(
                Worker(
                    id=self._worker_id,
                    model=self._model,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    devices=self._devices,
                    started_ms=now,
                    heartbeat_ms=now,
                    figures=asdict(self._engine.figures()),
                )
            )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        with self._database.write() as session:
            session.execute(delete(Worker).where(Worker.id == self._worker_id))

    def _beat(self) -> None:
        while not self._ended.wait(PERIOD_S):
            try:
                with self._database.write() as session:
                    session.execute(
                        update(Worker)
                        .where(Worker.id == self._worker_id)
                        .values(heartbeat_ms=now_ms(), figures=asdict(self._engine.figures()))
                    )
            except SQLAlchemyError as error:
                log.warning("heartbeat_failed", worker=self._worker_id, error=type(error).__name__)
