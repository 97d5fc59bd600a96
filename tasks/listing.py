"""Lists of jobs and files, a page at a time, in an order that new entries do not disturb."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, or_, select, tuple_

from tasks.database import Database
from tasks.errors import UserError
from tasks.files import is_visible
from tasks.tables import File, Job, JobKind, JobStatus

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Page(Generic[_Item]):
    """Some entries of a list, and whether there are more behind them."""

    items: Sequence[_Item]
    has_more: bool


def list_jobs(
    database: Database,
    tenant: str,
    *,
    after: str | None = None,
    limit: int = 20,
    statuses: Collection[JobStatus] = (),
    model: str | None = None,
    kinds: Collection[JobKind] = (),
    search: str | None = None,
) -> Page[Job]:
    """A tenant's jobs, newest first, those after the job `after`.

    `search` is a part of a job's id or of its input file's name.

    Raises:
        UserError: `after` is no job of this tenant.
    """
    query = (
        select(Job)
        .where(Job.tenant == tenant, Job.deleted_ms.is_(None), Job.kind != JobKind.SINGLE)
        .order_by(Job.created_ms.desc(), Job.id.desc())
    )
    if statuses:
        query = query.where(Job.status.in_(statuses))
    if model is not None:
        query = query.where(Job.model == model)
    if kinds:
        query = query.where(Job.kind.in_(kinds))
    if search:
        named = select(File.id).where(File.id == Job.input_file_id, contains(File.filename, search)).exists()
        query = query.where(or_(contains(Job.id, search), named))
    return _page(database, query, Job, tenant, after, limit, newest_first=True)


def list_files(
    database: Database,
    tenant: str,
    *,
    after: str | None = None,
    limit: int = 10_000,
    newest_first: bool = True,
    purpose: str | None = None,
) -> Page[File]:
    """A tenant's files by age, those after the file `after`.

    Raises:
        UserError: `after` is no file of this tenant.
    """
    query = select(File).where(File.tenant == tenant, is_visible())
    if newest_first:
        query = query.order_by(File.created_ms.desc(), File.id.desc())
    else:
        query = query.order_by(File.created_ms, File.id)
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return _page(database, query, File, tenant, after, limit, newest_first=newest_first)


def contains(column: Any, part: str) -> Any:
    """SQL condition: the column contains this text, whatever characters it has."""
    return column.icontains(part, autoescape=True)


def _page(
    database: Database,
    query: Select[Any],
    table: Any,
    tenant: str,
    after: str | None,
    limit: int,
    *,
    newest_first: bool,
) -> Page[Any]:
    with database.read() as session:
        if after is not None:
            # Deleted ones too: a client may delete what it lists, page by page.
            at = session.execute(
                select(table.created_ms, table.id).where(table.id == after, table.tenant == tenant)
            ).one_or_none()
            if at is None:
                raise UserError(f"'after' names nothing: {after!r}.", param="after")
            place = tuple_(table.created_ms, table.id)
            query = query.where(place < tuple(at) if newest_first else place > tuple(at))
        rows = session.scalars(query.limit(limit + 1)).all()
    return Page(rows[:limit], len(rows) > limit)
