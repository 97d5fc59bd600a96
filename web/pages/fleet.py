"""`/fleet` and `/models`: what runs, what waits, and what could run."""

from urllib.parse import urlsplit

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue

from tasks.figures import model_speed
from tasks.fleet import lane_depths, live_workers
from tasks.validation import ENDPOINTS
from web.api.answers import moment
from web.auth import backends

pages = Blueprint("fleet_pages", __name__)


@pages.get("/fleet")
def fleet() -> ResponseReturnValue:
    """Workers and queues."""
    return render_template("fleet.html", **_fleet(), flower_url=_flower_url())


@pages.get("/fleet/live")
def fleet_live() -> ResponseReturnValue:
    """The same without the frame."""
    return render_template("parts/fleet_tables.html", **_fleet())


def _fleet() -> dict[str, object]:
    database = backends().database
    workers = live_workers(database)
    return {
        "workers": [
            {
                "id": worker.id,
                "model": worker.model,
                "host": worker.host,
                "devices": worker.devices,
                "started_at": moment(worker.started_ms),
                "figures": worker.figures,
                "hit_rate": _hit_rate(worker.figures),
            }
            for worker in workers
        ],
        "lanes": lane_depths(database),
    }


def _hit_rate(figures: dict[str, object]) -> float | None:
    hits, queries = figures.get("prefix_cache_hits"), figures.get("prefix_cache_queries")
    if isinstance(hits, int) and isinstance(queries, int) and queries:
        return hits / queries
    return None


def _flower_url() -> str:
    """On the host that the browser reached this page by."""
    host = urlsplit(f"//{request.host}").hostname or "localhost"
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{backends().settings.flower_port}"


@pages.get("/models")
def models() -> ResponseReturnValue:
    """The catalogue."""
    settings = backends().settings
    live = [worker.model for worker in live_workers(backends().database)]
    entries = [
        {
            "name": name,
            "is_default": name == settings.default_model,
            "engine": entry.engine,
            "source": entry.source,
            "endpoints": [endpoint for endpoint in ENDPOINTS if entry.serves(endpoint)],
            "workers": live.count(name),
            "tokens_per_s": model_speed(backends().database, name),
        }
        for name, entry in settings.catalogue.items()
    ]
    return render_template("models.html", entries=entries)
