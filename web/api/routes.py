"""All routes of the job API."""

from flask_openapi import OpenAPI

from web.api import events, fleet, jobs, keys, results, submit


def register_job_api(app: OpenAPI) -> None:
    """Add the job API to the application."""
    for part in (submit, jobs, results, events, fleet, keys):
        app.register_api(part.api)
