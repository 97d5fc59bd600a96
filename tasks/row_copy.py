"""All rows of one database into another, whatever kinds the two are."""

from collections.abc import Callable

from sqlalchemy import Connection, Integer, Table, func, insert, select

from tasks.tables import Agent, Worker
from tasks.tables import Table as Tables

LIVE_TABLES = frozenset({Worker.__tablename__, Agent.__tablename__})
"""What they say is true of this moment and this place only."""

ROWS_AT_ONCE = 1_000


def copied_tables() -> list[Table]:
    """Every table with something to keep, those first that others refer to."""
    return [table for table in Tables.metadata.sorted_tables if table.name not in LIVE_TABLES]


def copy_rows(source: Connection, target: Connection, tell: Callable[[str, int], None]) -> dict[str, int]:
    """Copy everything; memory stays flat. Returns the number of rows by table.

    Both have the tables of this version, and the target's are empty. `tell` hears of a table and the rows
    of it so far.
    """
    counts: dict[str, int] = {}
    for table in copied_tables():
        counts[table.name] = 0
        query = select(table).execution_options(yield_per=ROWS_AT_ONCE)
        for rows in source.execute(query).mappings().partitions(ROWS_AT_ONCE):
            target.execute(insert(table), [dict(row) for row in rows])
            counts[table.name] += len(rows)
            tell(table.name, counts[table.name])
        _continue_numbering(target, table)
    return counts


def _continue_numbering(target: Connection, table: Table) -> None:
    """PostgreSQL numbers new rows from a sequence that knows nothing of rows that came with their number."""
    column = table.autoincrement_column
    if target.dialect.name != "postgresql" or column is None or not isinstance(column.type, Integer):
        return
    sequence = func.pg_get_serial_sequence(table.name, column.name)
    target.execute(select(func.setval(sequence, func.coalesce(func.max(column), 0) + 1, False)))
