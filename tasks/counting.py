"""Adding to rows of counters that may not be there yet, in one statement."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tasks.tables import Table


def add_counts(
    session: Session, table: type[Table], rows: Sequence[dict[str, Any]], counters: Sequence[str]
) -> None:
    """Insert these rows, or add their `counters` to the rows with the same primary key.

    One statement, because two transactions may both be the first.
    """
    if not rows:
        return
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table)
    statement = statement.on_conflict_do_update(
        index_elements=list(table.__table__.primary_key.columns),  # type: ignore[attr-defined]
        set_={name: getattr(table, name) + statement.excluded[name] for name in counters},
    )
    session.connection().execute(statement, rows)
