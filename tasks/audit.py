"""The audit trail: who or what changed what, append-only."""

from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from tasks.clock import now_ms
from tasks.tables import Audit


def audit(session: Session, tenant: str, action: str, subject: str, **detail: Any) -> None:
    """Append one line to the audit trail."""
    session.execute(
        insert(Audit).values(at_ms=now_ms(), tenant=tenant, action=action, subject=subject, detail=detail)
    )
