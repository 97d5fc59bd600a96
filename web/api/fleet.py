"""`/api/fleet` and `/api/models`: what runs, what waits, and what could run."""

from datetime import datetime

from flask import Response
from flask_openapi import APIBlueprint, Tag
from pydantic import JsonValue

from tasks.figures import model_speed
from tasks.fleet import lane_depths, live_workers
from tasks.tables import Lane
from tasks.validation import ENDPOINTS
from web.api.answers import KEY_SECURITY, Answer, answer, errors, moment
from web.auth import backends

TAG = Tag(name="Fleet", description="Models, workers and queues.")

api = APIBlueprint("fleet_api", __name__, url_prefix="/api", abp_tags=[TAG], abp_security=KEY_SECURITY)


class WorkerView(Answer):
    """A live engine worker."""

    id: str
    model: str
    host: str
    devices: str
    started_at: datetime | None
    heartbeat_at: datetime | None
    figures: dict[str, JsonValue]
    """What its engine said of itself at the last heartbeat."""


class LaneView(Answer):
    """Unfinished requests of one model and priority."""

    model: str
    priority: Lane
    pending: int
    """Not on a queue yet."""
    queued: int
    """On the queue."""
    leased: int
    """With a worker, in whole or in part."""


class FleetView(Answer):
    """What runs and what waits."""

    workers: list[WorkerView]
    lanes: list[LaneView]


class ModelView(Answer):
    """A model of the catalogue."""

    id: str
    is_default: bool
    engine: str
    endpoints: list[str]
    """Those that it serves, as far as the catalogue says."""
    workers: int
    """Live workers that serve it now."""
    tokens_per_s: float | None
    """What they did lately, all together; null when it never ran."""


class ModelCatalogue(Answer):
    """The models of this server."""

    data: list[ModelView]


@api.get("/fleet", responses={200: FleetView, **errors()})
def show_fleet() -> Response:
    """Show workers and queues"""
    database = backends().database
    workers = [
        WorkerView(
            id=worker.id,
            model=worker.model,
            host=worker.host,
            devices=worker.devices,
            started_at=moment(worker.started_ms),
            heartbeat_at=moment(worker.heartbeat_ms),
            figures=worker.figures,
        )
        for worker in live_workers(database)
    ]
    lanes = [
        LaneView(
            model=depth.model,
            priority=depth.lane,
            pending=depth.pending,
            queued=depth.queued,
            leased=depth.leased,
        )
        for depth in lane_depths(database)
    ]
    return answer(FleetView(workers=workers, lanes=lanes))


@api.get("/models", responses={200: ModelCatalogue, **errors()})
def list_models() -> Response:
    """List the models of this server"""
    settings = backends().settings
    live = [worker.model for worker in live_workers(backends().database)]
    models = [
        ModelView(
            id=name,
            is_default=name == settings.default_model,
            engine=entry.engine,
            endpoints=[endpoint for endpoint in ENDPOINTS if entry.serves(endpoint)],
            workers=live.count(name),
            tokens_per_s=model_speed(backends().database, name),
        )
        for name, entry in settings.catalogue.items()
    ]
    return answer(ModelCatalogue(data=models))
