"""The `gristmill` command. Each command's work is imported only when it is called."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from config.settings import Settings, SettingsError, get_settings, load_settings
from web.command_line import CLIENT_COMMANDS
from workers.upkeep import UPKEEP_COMMANDS

if TYPE_CHECKING:
    from tasks.database import Database


class _Commands(click.Group):
    """Turns the errors that are a user's to mend into one line and exit status 2."""

    def invoke(self, ctx: click.Context) -> object:
        from tasks.errors import UserError

        try:
            return super().invoke(ctx)
        except (SettingsError, UserError) as error:
            click.echo(f"gristmill: {error}", err=True)
            ctx.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gristmill")
def main() -> None:
    """Batch inference for LLMs on your own machines.

    Try `gristmill run prompts.jsonl`: it starts all it needs, runs every request of the file through a
    vLLM engine, and writes the results next to it in input order.
    """


_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the database, stored files and logs.  [default: gristmill-data]",
)


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Results file: .jsonl, .csv or .parquet.  [default: FILE with .results.jsonl]",
)
@click.option(
    "-m",
    "--model",
    help="Model for lines that name none: a name from `gristmill models`, a hub name, or a folder.  "
    "[default: the one the lines name, else the catalogue's default]",
)
@click.option("--endpoint", default="/v1/chat/completions", show_default=True, help="Url of every line.")
@_data_dir
def run(file: Path, output: Path | None, model: str | None, endpoint: str, data_dir: Path | None) -> None:
    """Run the requests in FILE to the end and write their results.

    FILE is in the format of OpenAI's Batch API: one JSON object a line, with custom_id, method, url and
    body. Stop it in any way and run the same command again: it goes on where it was.

    Exit status: 0 all succeeded, 1 some requests failed, 2 the job failed, 130 interrupted.
    """
    from rich.console import Console

    from workers.run import RunRequest, run_file

    request = RunRequest(
        file=file,
        output=output or file.with_name(file.stem + ".results.jsonl"),
        model=model,
        endpoint=endpoint,
        data_dir=data_dir or get_settings().data_dir,
    )
    sys.exit(run_file(request, Console()))


@main.command()
@click.option(
    "-m",
    "--model",
    help="A name from `gristmill models`, a hub name, or a folder.  [default: the catalogue's]",
)
@_data_dir
@click.option("--host", help="Address to listen on; anything but loopback opens it to the network.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the web server; 0 takes a free one.")
@click.option("--flower/--no-flower", default=True, help="Start Flower too, the Celery view.")
def up(model: str | None, data_dir: Path | None, host: str | None, port: int | None, flower: bool) -> None:
    """Start all of it on this machine: web pages, APIs, workers, an engine, Flower.

    Runs in the foreground until Ctrl-C. The first start prints a key; each start prints a link to log in.
    Redis and the database are started or made for you, unless the settings name some.

    Exit status: 0 stopped as asked, 2 it cannot start as things are, 130 stopped at once.
    """
    from rich.console import Console

    from workers.up import UpRequest, run_up

    request = UpRequest(data_dir or get_settings().data_dir, model, host, port, flower)
    sys.exit(run_up(request, Console()))


@main.command()
@_data_dir
def status(data_dir: Path | None) -> None:
    """Show how the `gristmill up` of this data folder is.

    Exit status: 0 it runs, 1 nothing runs.
    """
    from rich.console import Console

    from workers.status import show_status

    sys.exit(show_status(data_dir or get_settings().data_dir, Console()))


@main.command()
@click.argument("model")
@click.option("--devices", help="GPU indices or UUIDs of this engine, or CPU cores like 0-3.  [default: all]")
def worker(model: str, devices: str | None) -> None:
    """Serve MODEL: start its engine and work on its queues until stopped.

    Needs GRISTMILL_REDIS_URL and a database that other processes can reach. SIGTERM finishes what is in
    the engine and gives back the rest; a second one gives back everything.
    """
    settings = _process_settings()
    if model not in settings.catalogue:
        raise click.BadParameter(f"not in the catalogue: {', '.join(settings.catalogue)}", param_hint="MODEL")
    from workers.engine import EXIT_ENGINE_DID_NOT_START, EngineStartFailed
    from workers.engine_worker import run_engine_worker

    try:
        sys.exit(run_engine_worker(settings, model, devices))
    except EngineStartFailed as error:
        click.echo(f"gristmill: the engine of {model!r} did not start: {error}", err=True)
        sys.exit(EXIT_ENGINE_DID_NOT_START)


@main.command()
def system() -> None:
    """Validate, plan, dispatch and finish jobs, until stopped."""
    settings = _process_settings()
    from workers.reachable import migrated
    from workers.system_worker import run_system_worker

    migrated(settings).close()
    sys.exit(run_system_worker(settings))


@main.command()
def web() -> None:
    """Serve the APIs and the pages, until stopped."""
    settings = _process_settings()
    from web.server import serve
    from workers.reachable import migrated

    migrated(settings).close()
    serve(settings)


@main.command()
def flower() -> None:
    """Serve Flower, the Celery view, until stopped: read-only, behind a password.

    The user is `gristmill`; the password is in the file `flower_password` of the data folder.
    """
    settings = _process_settings()
    from workers.flower import run_flower

    run_flower(settings)


@main.group()
def keys() -> None:
    """Make, list and revoke API keys. Works on the database, with or without a server."""


@keys.command("create")
@click.option("--name", required=True, help="What the key is for, such as a person or a program.")
@click.option(
    "--role",
    type=click.Choice(["admin", "submit", "read"]),
    default="submit",
    show_default=True,
    help="read: look; submit: run jobs too; admin: keys too.",
)
@click.option("--tenant", default="local", show_default=True, help="Whose jobs and files the key sees.")
@click.option("-q", "--quiet", is_flag=True, help="Print the key alone.")
def create_key(name: str, role: str, tenant: str, quiet: bool) -> None:
    """Make a key and print it, this once."""
    from tasks.keys import create_key as make
    from tasks.tables import Role

    new = make(_database(), tenant=tenant, name=name, role=Role(role))
    if quiet:
        click.echo(new.secret)
        return
    click.echo(f"{new.secret}\n\nRole {role}, tenant {tenant}, id {new.key.id}. It is not shown again.")


@keys.command("list")
def list_keys() -> None:
    """List all keys; never the keys themselves, only how each begins."""
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.table import Table

    from tasks.keys import list_keys as read

    table = Table("id", "begins with", "name", "role", "tenant", "created", "revoked", box=None)
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].no_wrap = True
    for key in read(_database()):
        times = (
            "" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
            for at_ms in (key.created_ms, key.revoked_ms)
        )
        table.add_row(key.id, key.prefix, key.name, key.role, key.tenant, *times)
    Console().print(table, markup=False)


@keys.command("revoke")
@click.argument("key_id")
def revoke_key(key_id: str) -> None:
    """End the key KEY_ID, an id of `gristmill keys list`, at once and for good."""
    from tasks.keys import revoke_key as end

    key = end(_database(), key_id)
    click.echo(f"{key.id} ({key.name}) is revoked.")


@main.command()
def models() -> None:
    """List the models in the catalogue."""
    from rich.console import Console
    from rich.table import Table

    settings = get_settings()
    table = Table("model", "engine", "source", "engine arguments")
    for name, entry in settings.catalogue.items():
        label = f"{name} (default)" if name == settings.default_model else name
        arguments = " ".join(f"{key}={value}" for key, value in entry.engine_args.items())
        table.add_row(label, entry.engine, entry.source, arguments)
    Console().print(table)


@main.command()
def doctor() -> None:
    """Check what Gristmill needs on this machine, and say what to do."""
    from workers.doctor import examine

    well = True
    for finding in examine(get_settings()):
        mark = click.style("ok  ", fg="green") if finding.ok else click.style("FAIL", fg="red")
        click.echo(f"{mark} {finding.name}: {finding.detail}")
        well = well and finding.ok
    sys.exit(0 if well else 1)


for command in (*UPKEEP_COMMANDS, *CLIENT_COMMANDS):
    main.add_command(command)


def _database() -> "Database":
    from workers.reachable import migrated

    return migrated(get_settings())


def _process_settings() -> Settings:
    """Settings of a long-running process, whose logs go to stderr and whose parent it must not outlive."""
    from config.logs import configure_logging
    from workers.orphan_guard import guard_child

    guard_child()
    settings = load_settings()
    settings.resolved_redis_url()
    configure_logging(settings)
    return settings


if __name__ == "__main__":
    main()
