"""All routes of the OpenAI-compatible API."""

from flask_openapi import OpenAPI

from web.openai import batches, files, models, single, uploads


def register_openai_api(app: OpenAPI) -> None:
    """Add the API to the application."""
    for part in (files, uploads, batches, models, single):
        app.register_api(part.api)
