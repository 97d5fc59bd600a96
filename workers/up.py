"""`gristmill up`: everything one machine needs, in the foreground."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx
import msgspec
from rich.console import Console
from rich.markup import escape

from config.settings import Settings, load_settings
from tasks.database import Database
from tasks.errors import UserError
from tasks.fleet import live_workers
from tasks.keys import LOGIN_LINK_S, create_key, list_keys, login_token
from tasks.tables import Key, Role
from workers.data_folder import DataFolder
from workers.flower import FLOWER_USER, flower_password
from workers.local_mill import LocalMill
from workers.model_choice import must_be_usable, usable_default, with_model
from workers.reachable import free_port, migrated, must_reach_redis
from workers.up_state import UpState, remove_state, write_state

EXIT_OK = 0
EXIT_INTERRUPTED = 130

POLL_S = 0.25
LOOK_TIMEOUT_S = 1.0
SHOWN_LOG_LINES = 12
TENANT = "local"


Say = Callable[[str], None]


@dataclass(frozen=True)
class UpRequest:
    """What the command line asks for; null: as the settings say."""

    data_dir: Path
    model: str | None
    host: str | None
    port: int | None
    flower: bool


def run_up(request: UpRequest, console: Console) -> int:
    """Start everything and keep it running until Ctrl-C or SIGTERM; returns the exit status.

    Raises:
        UserError: a port is taken, the folder is in use, or the model, Redis or the database can't be had.
    """

    def say(message: str) -> None:
        console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {escape(message)}", highlight=False)

    settings, model, environment = _settled(request, say)
    must_reach_redis(settings)
    with DataFolder(settings.data_dir) as folder:
        settings = _with_ports(settings, request, environment)
        database = migrated(settings)
        state = _first_state(settings, model, flower=request.flower)
        try:
            with (
                _stopped_by_signals(settings, console),
                LocalMill(settings, folder, environment, say) as mill,
            ):
                # Not before: a key that is made and never shown is lost.
                key, secret = _admin_key(database)
                _introduce(settings, state, key, secret, console)
                mill.start_web()
                if request.flower:
                    mill.start_flower()
                mill.start_engine(model)
                _Watch(mill, folder.path, state, database, console, say).forever()
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except _Stopped:
            say("Everything has stopped. What is not finished goes on at the next start.")
            return EXIT_OK
        finally:
            remove_state(folder.path)
            database.close()
    return EXIT_OK


class _Stopped(Exception):
    """Somebody asked for the end."""


@contextmanager
def _stopped_by_signals(settings: Settings, console: Console) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end the block gently; the second time at once."""

    def stop(number: int, _frame: object) -> None:
        for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(again, signal.default_int_handler)
        console.print(
            f"\nStopping ({signal.Signals(number).name}): the engine finishes what it holds, for at most "
            f"{settings.drain_s:.0f} s. Once more stops at once."
        )
        raise _Stopped

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    yield


def _settled(request: UpRequest, say: Say) -> tuple[Settings, str, dict[str, str]]:
    """Settings, model, and the variables that tell the child processes the same."""
    settings = load_settings(data_dir=request.data_dir.absolute())
    environment = {"GRISTMILL_DATA_DIR": str(settings.data_dir)}
    if request.model is None:
        model = usable_default(settings, say)
    else:
        model = request.model
        settings, variables = with_model(settings, model)
        environment |= variables
        must_be_usable(settings, model)
    environment["GRISTMILL_DEFAULT_MODEL"] = model
    return settings.model_copy(update={"default_model": model}), model, environment


def _with_ports(settings: Settings, request: UpRequest, environment: dict[str, str]) -> Settings:
    """Settings with the addresses that are used, which the environment tells the child processes."""
    host = request.host or settings.web_host
    wanted = settings.web_port if request.port is None else request.port
    web_port = free_port(host, wanted, "GRISTMILL_WEB_PORT or --port")
    changes: dict[str, object] = {"web_host": host, "web_port": web_port}
    if request.flower:
        if web_port == settings.flower_port:
            raise UserError(
                f"port {web_port} is asked for twice, for the web server and for Flower: "
                "change GRISTMILL_FLOWER_PORT or --port, or use --no-flower",
                code="port_in_use",
            )
        changes["flower_port"] = free_port(host, settings.flower_port, "GRISTMILL_FLOWER_PORT or --no-flower")
    environment |= {f"GRISTMILL_{name.upper()}": str(value) for name, value in changes.items()}
    return settings.model_copy(update=changes)


def _first_state(settings: Settings, model: str, *, flower: bool) -> UpState:
    host = _visible(settings)
    url = settings.resolved_database_url()
    return UpState(
        pid=os.getpid(),
        model=model,
        web_url=f"http://{host}:{settings.web_port}",
        flower_url=f"http://{host}:{settings.flower_port}" if flower else None,
        database="PostgreSQL" if url.startswith("postgresql") else "SQLite, in the data folder",
        broker="embedded Redis-protocol server" if settings.redis_url is None else "Redis, by the settings",
        processes={},
    )


def _visible(settings: Settings) -> str:
    """An address that this machine's browser can open."""
    if settings.web_host in ("0.0.0.0", "::"):  # noqa: S104 (compared, not bound)
        return "127.0.0.1"
    return settings.web_host_in_urls


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _admin_key(database: Database) -> tuple[Key | None, str | None]:
    """The key that the login link stands for; its secret only if it was made just now."""
    keys = list_keys(database)
    if not keys:
        new = create_key(database, tenant=TENANT, name="first key", role=Role.ADMIN)
        return new.key, new.secret
    # Newest first.
    valid = (
        key for key in keys if key.revoked_ms is None and key.role == Role.ADMIN and key.tenant == TENANT
    )
    return next(valid, None), None


def _introduce(
    settings: Settings, state: UpState, key: Key | None, secret: str | None, console: Console
) -> None:
    """One screen: where everything is, and how to get in."""
    console.print(f"[bold]Gristmill {version('gristmill')}[/bold]  {escape(str(settings.data_dir))}")
    rows = {
        "model": state.model,
        "database": state.database,
        "broker": state.broker,
        "pages": state.web_url,
        "OpenAI API": f"{state.web_url}/v1",
        "job API": f"{state.web_url}/api, described at {state.web_url}/openapi/scalar",
        "logs": str(settings.data_dir / "logs"),
    }
    if state.flower_url is not None:
        rows["Flower"] = f"{state.flower_url}, user {FLOWER_USER}, password {flower_password(settings)}"
    for name, value in rows.items():
        console.print(f"  {name:<11} {escape(value)}", highlight=False, soft_wrap=True)
    if not _is_loopback(settings.web_host):
        console.print(
            f"[yellow]Everybody who reaches {settings.web_host} can try to log in and read the traffic: "
            "put a proxy with TLS in front.[/yellow]"
        )
    if secret is not None:
        console.print("\nThe first key, role admin. It is shown this once:", highlight=False)
        console.print(f"  [bold]{secret}[/bold]", highlight=False, soft_wrap=True)
    if key is None:
        console.print(
            f"\nNo admin key of tenant {TENANT} is valid: make one with "
            "`gristmill keys create --name NAME --role admin`."
        )
    else:
        if secret is None:
            console.print(
                f"\nThe key {escape(repr(key.name))} was shown when it was made, and is not shown again; "
                "`gristmill keys create` makes others.",
                highlight=False,
            )
        link = f"{state.web_url}/login?token={login_token(settings, key.id)}"
        console.print(
            f"\nLog in, within {LOGIN_LINK_S // 60} minutes, as {escape(repr(key.name))}:", highlight=False
        )
        console.print(f"  {link}", highlight=False, soft_wrap=True)
    console.print("\nCtrl-C stops everything; `gristmill status` in another terminal shows how it is.\n")


class _Watch:
    """Tends the parts, and tells when each is ready."""

    def __init__(
        self, mill: LocalMill, folder: Path, state: UpState, database: Database, console: Console, say: Say
    ) -> None:
        self._mill = mill
        self._folder = folder
        self._state = state
        self._database = database
        self._console = console
        self._say = say
        self._written: dict[str, int | None] | None = None
        self._ready: set[str] = set()
        self._shown_failure = False

    def forever(self) -> None:
        """Until a signal ends it."""
        while True:
            self._mill.tend()
            self._write_state()
            self._tell_readiness()
            self._show_failed_start()
            time.sleep(POLL_S)

    def _write_state(self) -> None:
        processes = {name: part.child().pid for name, part in self._mill.parts.items()}
        if processes != self._written:
            self._written = processes
            self._ready &= {name for name, pid in processes.items() if pid is not None}
            write_state(self._folder, msgspec.structs.replace(self._state, processes=processes))

    def _tell_readiness(self) -> None:
        for name, is_ready, what in (
            ("web", self._web_answers, f"The web server is ready: {self._state.web_url}"),
            ("flower", self._flower_answers, f"Flower is ready: {self._state.flower_url}"),
            ("engine", self._engine_answers, f"The engine is ready: {self._state.model}"),
        ):
            part = self._mill.parts.get(name)
            if name not in self._ready and part is not None and part.is_running and is_ready():
                self._ready.add(name)
                self._say(what)

    def _web_answers(self) -> bool:
        return _answers(f"{self._state.web_url}/healthz")

    def _flower_answers(self) -> bool:
        return _answers(f"{self._state.flower_url}/healthcheck")

    def _engine_answers(self) -> bool:
        engine_pid = self._mill.parts["engine"].child().pid
        return any(worker.pid == engine_pid for worker in live_workers(self._database, self._state.model))

    def _show_failed_start(self) -> None:
        """An engine that cannot start is the fault that people meet most: its reason is in its log."""
        engine = self._mill.parts["engine"]
        if not engine.is_running and engine.is_hopeless and not self._shown_failure:
            self._shown_failure = True
            self._console.print("[red]The engine does not start.[/red] The end of its log:\n")
            self._console.print(escape(engine.child().last_lines(SHOWN_LOG_LINES)))
            self._console.print("\nEverything else runs; the engine is tried again once a minute.")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=LOOK_TIMEOUT_S).status_code == 200
    except httpx.TransportError:
        return False
