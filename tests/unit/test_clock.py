"""The database's clock in statements."""

from sqlalchemy import select

from tasks.clock import now_ms


def test_statements_with_it_are_compiled_once() -> None:
    # Without a key SQLAlchemy compiles a statement at each use: a third of the cost of most writes.
    assert select(now_ms())._generate_cache_key() is not None
