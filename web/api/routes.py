"""All routes of the job API."""

from flask_openapi import OpenAPI

from web.api import events, fleet, keys, results, submit


def register_job_api(app: OpenAPI) -> None:
    """Add the job API to the application."""
    # `submit` completes the routes of `jobs`: in the description a path belongs to one blueprint.
    for part in (submit, results, events, fleet, keys):
        app.register_api(part.api)
