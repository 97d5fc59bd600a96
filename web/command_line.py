"""Commands that talk to a running server. Their work is imported only when one of them is called."""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from config.settings import get_settings

if TYPE_CHECKING:
    from web.client import Client

PRIORITIES = click.Choice(["urgent", "normal", "bulk"])
STATUSES = click.Choice(
    ["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
)
INPUT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_Command = TypeVar("_Command", bound=Callable[..., None])


def _server_options(command: _Command) -> _Command:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON."),
        click.option("--key", help="API key.  [default: GRISTMILL_API_KEY]"),
        click.option("--server", help="Address of the server.  [default: GRISTMILL_SERVER_URL]"),
    ):
        command = option(command)
    return command


def _input_options(command: _Command) -> _Command:
    for option in (
        click.option("--window", help="Time until the job expires, such as 90m, 24h or 7d."),
        click.option("--priority", type=PRIORITIES, help="Which work goes first.  [default: normal]"),
        click.option("--endpoint", help="Where every request goes.  [default: /v1/chat/completions]"),
        click.option("-m", "--model", help="Served name; see `gristmill models`."),
        click.option("--schema", type=INPUT_FILE, help="File with a JSON schema that every answer follows."),
        click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A sampling setting."),
        click.option("--system", help="System prompt of every row."),
        click.option("--id-column", help="Column that holds each row's id.  [default: row-1, row-2, ...]"),
        click.option("--format", type=click.Choice(["csv", "jsonl", "parquet"]), help="Of rows in FILE."),
        click.option("--template-file", type=INPUT_FILE, help="File that holds the template."),
        click.option("-t", "--template", help="Prompt of each row, such as 'Summarise: {{ text }}'."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("file", type=INPUT_FILE)
@_input_options
@click.option("--watch", is_flag=True, help="Wait for the job's end, as `gristmill watch` does.")
@click.option("--validate", is_flag=True, help="Only check it, as `gristmill validate` does.")
@_server_options
def submit(
    file: Path, watch: bool, validate: bool, server: str | None, key: str | None, as_json: bool, **asked: Any
) -> None:
    """Hand FILE over to a running server.

    FILE has rows (CSV, JSONL or Parquet) if a template is given, and requests in the format of OpenAI's
    Batch API otherwise. The job goes on when this command has ended.

    \b
    Example:
      gristmill submit reviews.csv -t 'Summarise: {{ text }}' --set max_tokens=100 --watch
    """
    from web.commands import check_file, submit_file

    with _client(server, key) as client:
        if validate:
            sys.exit(check_file(client, file, _options(asked), as_json=as_json))
        sys.exit(submit_file(client, file, _options(asked), as_json=as_json, watch=watch))


@click.command()
@click.argument("file", type=INPUT_FILE)
@_input_options
@_server_options
def validate(file: Path, server: str | None, key: str | None, as_json: bool, **asked: Any) -> None:
    """Check FILE on a running server without making a job.

    Shows every fault, the first prompts as they would run, the tokens and the expected time.

    \b
    Example:
      gristmill validate reviews.csv -t 'Summarise: {{ text }}'

    Exit status: 0 it can run, 1 it has faults.
    """
    from web.commands import check_file

    with _client(server, key) as client:
        sys.exit(check_file(client, file, _options(asked), as_json=as_json))


@click.command()
@click.option("--status", type=STATUSES, multiple=True, help="Only jobs in this state; may be repeated.")
@click.option("-m", "--model", help="Only jobs on this model.")
@click.option("--search", help="Only jobs with this in their id or their file's name.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many.")
@_server_options
def jobs(
    status: tuple[str, ...],
    model: str | None,
    search: str | None,
    limit: int,
    server: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """List the jobs of a running server, newest first.

    \b
    Example:
      gristmill jobs --status in_progress
    """
    from web.commands import list_jobs

    query = {"status": list(status), "model": model, "search": search, "limit": limit}
    with _client(server, key) as client:
        list_jobs(client, {name: value for name, value in query.items() if value}, as_json=as_json)


@click.command()
@click.argument("job")
@_server_options
def watch(job: str, server: str | None, key: str | None, as_json: bool) -> None:
    """Show JOB's progress until it ends. Ctrl-C ends the watching, not the job.

    \b
    Example:
      gristmill watch batch_6a3f0c1e5b7d9f2a4c6e8b0d

    Exit status: 0 all succeeded, 1 some requests failed, 2 the job failed, expired or was cancelled.
    """
    from web.commands import watch_job

    with _client(server, key) as client:
        sys.exit(watch_job(client, job, as_json=as_json))


@click.command()
@click.argument("job")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Results file: .jsonl, .csv or .parquet.  [default: JSONL to the standard output]",
)
@click.option(
    "--which",
    type=click.Choice(["all", "output", "errors"]),
    default="all",
    show_default=True,
    help="All results, the good ones, or the others.",
)
@_server_options
def results(
    job: str, output: Path | None, which: str, server: str | None, key: str | None, as_json: bool
) -> None:
    """Download JOB's results in input order; what is finished so far, if it still runs.

    \b
    Example:
      gristmill results batch_6a3f0c1e5b7d9f2a4c6e8b0d -o answers.csv
    """
    from web.commands import save_results

    with _client(server, key) as client:
        save_results(client, job, output, which, as_json=as_json)


@click.command()
@click.argument("job")
@_server_options
def cancel(job: str, server: str | None, key: str | None, as_json: bool) -> None:
    """Cancel JOB. Finished results are kept.

    \b
    Example:
      gristmill cancel batch_6a3f0c1e5b7d9f2a4c6e8b0d
    """
    from web.commands import cancel_job

    with _client(server, key) as client:
        cancel_job(client, job, as_json=as_json)


@click.command()
@click.argument("job")
@click.option("--priority", type=PRIORITIES, help="Priority of the new job.  [default: as before]")
@click.option("--window", help="Time until the new job expires, such as 90m, 24h or 7d.")
@click.option("--watch", is_flag=True, help="Wait for the new job's end.")
@_server_options
def retry(
    job: str,
    priority: str | None,
    window: str | None,
    watch: bool,
    server: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Run again what did not succeed in JOB, as a new job.

    \b
    Example:
      gristmill retry batch_6a3f0c1e5b7d9f2a4c6e8b0d --watch
    """
    from web.commands import rerun_job

    changed = {name: value for name, value in (("priority", priority), ("window", window)) if value}
    with _client(server, key) as client:
        sys.exit(rerun_job(client, job, changed, as_json=as_json, watch=watch))


CLIENT_COMMANDS = (submit, validate, jobs, watch, results, cancel, retry)


def _client(server: str | None, key: str | None) -> "AbstractContextManager[Client]":
    from web.client import Client

    settings = get_settings()
    if key is None and settings.api_key is not None:
        key = settings.api_key.get_secret_value()
    return Client(server or settings.server_url, key)


def _options(asked: dict[str, Any]) -> dict[str, Any]:
    """The command's options as the API's fields."""
    if asked["template"] is not None and asked["template_file"] is not None:
        raise click.UsageError("Give --template or --template-file, not both.")
    if (file := asked.pop("template_file")) is not None:
        asked["template"] = _text_of(file, "--template-file")
    if (file := asked.pop("schema")) is not None:
        try:
            asked["json_schema"] = json.loads(_text_of(file, "--schema"))
        except ValueError as error:
            raise click.BadParameter(f"{file} is not JSON: {error}", param_hint="--schema") from error
    asked["settings"] = dict(_setting(text) for text in asked["settings"])
    return {name: value for name, value in asked.items() if value not in (None, {})}


def _text_of(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{file} is not UTF-8 text", param_hint=option) from error


def _setting(text: str) -> tuple[str, Any]:
    """`temperature=0.2` as a name and a JSON value; what is no JSON is text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
