"""All pages."""

from flask import Flask, g

from tasks.tables import Role
from web.pages import fleet, jobs, keys, login, submit
from web.pages.show import register_filters


def register_pages(app: Flask) -> None:
    """Add the pages to the application."""
    register_filters(app)
    for part in (login, submit, jobs, fleet, keys):
        app.register_blueprint(part.pages)

    @app.context_processor
    def everywhere() -> dict[str, object]:
        who = g.get("caller")
        return {"who": who, "is_admin": who is not None and who.role is Role.ADMIN}
