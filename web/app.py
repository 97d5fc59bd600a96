"""The web application: OpenAI-compatible API, job API and pages on one set of backends."""

from datetime import timedelta
from secrets import token_hex

from flask import Response, g, request
from flask_openapi import Info, OpenAPI
from flask_wtf.csrf import CSRFProtect
from redis.backoff import NoBackoff
from redis.retry import Retry
from werkzeug.middleware.proxy_fix import ProxyFix

from config.celeryconfig import PUBLISHER_TIMEOUT_S
from config.settings import Settings, get_settings
from tasks.app import use_settings
from tasks.backends import Backends
from tasks.errors import UserError
from tasks.keys import secret_key
from web.api.routes import register_job_api
from web.auth import DOCS_PATH, guard, is_api_path, public
from web.errors import register_errors, validation_answer
from web.limits import limiter
from web.openai.routes import register_openai_api
from web.pages.routes import register_pages

SESSION_LIFETIME = timedelta(days=7)
FORM_MEMORY_BYTES = 16 << 20
"""Text fields of one form: pasted prompts. Files are not held in memory."""

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
DOCS_POLICY = (
    CONTENT_SECURITY_POLICY + "; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
)
"""The page that shows the API's description brings inline script; it shows nothing of any user."""

csrf = CSRFProtect()


def create_app(settings: Settings | None = None) -> OpenAPI:
    """Build the application; the database must have been migrated."""
    settings = settings or get_settings()
    use_settings(settings, PUBLISHER_TIMEOUT_S)
    app = OpenAPI(
        __name__,
        info=Info(title="Gristmill", version="1"),
        security_schemes={"key": {"type": "http", "scheme": "bearer"}},
        validation_error_status=400,
        validation_error_callback=validation_answer,
    )
    app.openapi_version = "3.1.0"
    app.config.update(
        SECRET_KEY=secret_key(settings),
        SESSION_COOKIE_NAME="gristmill_session",
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_COOKIE_SECURE=settings.web_behind_proxy,
        PERMANENT_SESSION_LIFETIME=SESSION_LIFETIME,
        MAX_FORM_MEMORY_SIZE=FORM_MEMORY_BYTES,
        WTF_CSRF_TIME_LIMIT=None,  # as long as the session
        WTF_CSRF_CHECK_DEFAULT=False,
        # The same broker under the name that the limiter knows for a socket.
        RATELIMIT_STORAGE_URI=settings.resolved_redis_url().replace("redis+socket:", "redis+unix:", 1),
        # Without it in a moment, or each process counts for itself.
        RATELIMIT_STORAGE_OPTIONS={
            "socket_timeout": PUBLISHER_TIMEOUT_S,
            "socket_connect_timeout": PUBLISHER_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
        },
    )
    app.json.sort_keys = False  # type: ignore[attr-defined]
    if settings.web_behind_proxy:
        app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
    app.extensions["backends"] = Backends.open(settings)

    _identify_requests(app)
    guard(app)
    register_errors(app)
    limiter.init_app(app)
    csrf.init_app(app)
    _protect_forms(app)
    _register_routes(app)
    return app


def _register_routes(app: OpenAPI) -> None:
    register_job_api(app)
    register_openai_api(app)
    register_pages(app)

    @app.get("/healthz", doc_ui=False)
    @public
    def healthz() -> dict[str, str]:
        return {"status": "ok"}


def _protect_forms(app: OpenAPI) -> None:
    """The APIs take no cookies, so nobody can be led to call them."""

    @app.before_request
    def check_token() -> None:
        view = app.view_functions.get(request.endpoint or "")
        if not is_api_path(request.path) and not getattr(view, "checks_token", False):
            csrf.protect()


def _identify_requests(app: OpenAPI) -> None:
    @app.before_request
    def begin() -> None:
        g.request_id = f"req_{token_hex(12)}"
        # No name of anything has one, and PostgreSQL refuses it only once it is asked.
        if "\x00" in request.path:
            raise UserError("The address contains NUL characters.")
        for name, value in request.args.items(multi=True):
            if "\x00" in name + value:
                raise UserError(f"{name!r} contains NUL characters.", param=name)

    @app.after_request
    def finish(answer: Response) -> Response:
        headers = answer.headers
        headers["x-request-id"] = g.get("request_id", "")
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "same-origin"
        is_docs = request.path.startswith(DOCS_PATH)
        headers["Content-Security-Policy"] = DOCS_POLICY if is_docs else CONTENT_SECURITY_POLICY
        if request.endpoint != "static" and not is_api_path(request.path):
            headers.setdefault("Cache-Control", "no-store")
        return answer
