"""What goes by rule, what is said before, and what stays."""

import pytest
from sqlalchemy import func, select

from tasks import retention
from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.finalise import settle
from tasks.jobs import get_job
from tasks.retention import apply_rules, due, expire_jobs
from tasks.tables import Audit, Job, JobStatus, Result
from tests.samples import change_job, leased, outcomes_of, started_job, with_settings

LONG_AGO_MS = 1_000


def ended(backends: Backends, **changes: object) -> str:
    job_id = started_job(backends, 2)
    lease = leased(backends, job_id)
    done = outcomes_of(backends, lease)
    record_results(backends.database, lease, done, worker="w", lease_s=30, finish=True)
    assert settle(backends, job_id) == JobStatus.COMPLETED
    if changes:
        change_job(backends, job_id, **changes)
    return job_id


def jobs(backends: Backends) -> set[str]:
    with backends.database.read() as session:
        return set(session.scalars(select(Job.id)))


def test_jobs_are_kept_for_ever_unless_a_setting_says_otherwise(backends: Backends) -> None:
    old = ended(backends, completed_ms=LONG_AGO_MS)
    assert expire_jobs(backends) == 0
    apply_rules(backends)
    assert jobs(backends) == {old}


def test_ended_jobs_go_with_their_results_when_they_were_kept_long_enough(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "JOBS_AT_ONCE", 2)
    keeping = with_settings(backends, job_expires_s=3600)
    old = [ended(backends, completed_ms=LONG_AGO_MS) for _ in range(5)]
    young = ended(backends)
    running = started_job(backends, 2)
    change_job(backends, running, created_ms=LONG_AGO_MS)
    first = due(keeping)[0]
    assert (first.count, first.what) == (5, "jobs with 10 results")
    assert first.size_bytes > 0
    assert "3600 s (job_expires_s)" in first.rule
    assert jobs(backends) == {*old, young, running}, "saying it changes nothing"

    said: list[str] = []
    apply_rules(keeping, said.append)
    assert jobs(backends) == {young, running}
    assert said[:2] == ["jobs that expired: 5", "jobs removed: 5"]
    with backends.database.read() as session:
        assert set(session.scalars(select(Result.job_id))) == {young}
        kept = select(func.count()).select_from(Audit).where(Audit.action == "job.kept_long_enough")
        assert session.execute(kept).scalar_one() == 5
    assert [each.count for each in due(keeping)] == [0, 0, 0, 0]


@pytest.mark.parametrize("column", ["failed_ms", "expired_ms", "cancelled_ms"])
def test_every_way_to_end_counts(sqlite_backends: Backends, column: str) -> None:
    status = column.removesuffix("_ms")
    job_id = ended(sqlite_backends, status=status, completed_ms=None, **{column: LONG_AGO_MS})
    assert expire_jobs(with_settings(sqlite_backends, job_expires_s=3600)) == 1
    assert get_job(sqlite_backends.database, job_id).deleted_ms is not None
