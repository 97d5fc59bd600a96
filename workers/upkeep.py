"""The commands that look after what is stored: backup, restore, purge."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("folder", type=FOLDER)
def backup(folder: Path) -> None:
    """Copy everything to the new folder FOLDER, while everything runs.

    The database as it is at one moment, and all files that it names. Redis holds nothing to keep. The
    folder can be restored on SQLite and on PostgreSQL, whichever it came from.
    """
    from config.settings import get_settings
    from tasks.backends import Backends
    from tasks.backup import take_backup

    with _progress("Backing up") as tell:
        manifest = take_backup(Backends.open(get_settings()), folder, tell)
    rows = sum(manifest.rows.values())
    click.echo(
        f"{folder}: {manifest.rows['jobs']:,} jobs, {rows:,} rows, {manifest.objects:,} files of "
        f"{manifest.object_bytes / 1e6:,.1f} MB."
    )
    if manifest.gone:
        click.echo(f"{len(manifest.gone)} files were removed by their rules while it was taken.")


@click.command()
@click.argument("folder", type=FOLDER)
def restore(folder: Path) -> None:
    """Fill an empty database and its storage from the backup in FOLDER.

    Where they are is what the settings say, as for every command. Nothing may run on them. Work that was
    under way is taken up again, and deadlines move by the time that has passed since.
    """
    from config.settings import get_settings
    from tasks.backends import Backends
    from tasks.restore import restore_backup
    from workers.data_folder import DataFolder

    settings = get_settings()
    with DataFolder(settings.data_dir.absolute()), _progress("Restoring") as tell:
        manifest = restore_backup(Backends.open(settings), folder, tell)
    click.echo(
        f"Restored {manifest.rows['jobs']:,} jobs and {manifest.objects:,} files. Start with `gristmill up`."
    )


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def purge(dry_run: bool) -> None:
    """Remove what the rules of retention no longer keep, now instead of in the next hour."""
    from config.settings import get_settings
    from tasks.backends import Backends
    from tasks.retention import apply_rules, due

    backends = Backends.open(get_settings())
    backends.database.migrate()
    for each in due(backends):
        click.echo(f"{each.rule}: {each.count:,} {each.what}, {each.size_bytes / 1e6:,.1f} MB due")
    if dry_run:
        click.echo("Nothing was removed: this was a dry run.")
        return
    apply_rules(backends, click.echo)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str], None]]:
    """A line that shows how far it is; nothing where nobody watches."""
    from rich.console import Console

    with Console(stderr=True).status(f"{what}...") as status:
        yield lambda message: status.update(f"{what}: {message}")


UPKEEP_COMMANDS = (backup, restore, purge)
