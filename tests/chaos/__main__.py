"""`python -m tests.chaos`: chaos for as long as one likes, reproducible by its seed."""

import os
import secrets
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import click

from tests.chaos.databases import POSTGRESQL, SQLITE
from tests.chaos.object_store import FOLDER, S3
from tests.chaos.run import run_chaos
from tests.chaos.schedule import plan

OBJECT_STORE = {SQLITE: FOLDER, POSTGRESQL: S3}
"""What each database goes with: everything on one disk, or everything on servers."""

ROUND_S = 60.0
"""A long run is cut into mills of this age, each checked and each with a seed of its own."""


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, help="Of faults.")
@click.option("--seed", type=int, help="Of the first round; the next ones count up.  [default: by chance]")
@click.option(
    "--database", type=click.Choice([SQLITE, POSTGRESQL, "both"]), default="both", show_default=True
)
@click.option(
    "--round-s", type=click.FloatRange(min=1), default=ROUND_S, show_default=True, help="Of one mill."
)
@click.option("--plan", "show_plan", is_flag=True, help="Print the faults of each round before it.")
@click.option("--keep", is_flag=True, help="Keep the folder of each round, with all logs.")
def main(
    seconds: float, seed: int | None, database: str, round_s: float, show_plan: bool, keep: bool
) -> None:
    """Break a mill under load in every way there is, and check that nothing was lost or done twice.

    Exit status: 0 all is as it must be, 1 something is not; then the folder with all logs stays.
    """
    # Those of this process only: what the tests may not warn of, the mill's processes may.
    warnings.simplefilter("default")
    for name in [name for name in os.environ if name.startswith("GRISTMILL_")]:
        del os.environ[name]
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    kinds = [SQLITE, POSTGRESQL] if database == "both" else [database]
    failed = []
    for kind in kinds:
        each_s = min(seconds / len(kinds), round_s)
        for number in range(round(seconds / len(kinds) / each_s)):
            if not _round(kind, seed + number, each_s, show_plan=show_plan, keep=keep):
                failed.append(f"--seed {seed + number} --database {kind} --seconds {each_s:g}")
    if failed:
        click.echo("To see it again:\n" + "\n".join(f"  python -m tests.chaos {each}" for each in failed))
        sys.exit(1)


def _round(database: str, seed: int, seconds: float, *, show_plan: bool, keep: bool) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="gristmill-chaos-"))
    click.echo(f"chaos on {database}, seed {seed}, logs in {folder}/logs")
    if show_plan:
        for each in plan(seed, seconds, {database, OBJECT_STORE[database]}):
            click.echo(str(each))

    def tell(line: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)

    report = run_chaos(
        folder,
        database=database,
        object_store=OBJECT_STORE[database],
        seed=seed,
        seconds=seconds,
        tell=tell,
    )
    tell("")
    click.echo(str(report))
    if report.violations:
        click.echo(f"  all that is known is in {folder}")
        return False
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return True


if __name__ == "__main__":
    main()
