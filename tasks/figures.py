"""What a job has got done and how fast: counted with its results, so that asking costs nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tasks.clock import now_ms
from tasks.counting import add_counts
from tasks.database import Database
from tasks.outcomes import Outcome
from tasks.tables import FINAL_STATUSES, Job, JobStatus, Progress, Tally, TallySubject

RATE_WINDOW_MS = 20_000
"""Rates are those of the last seconds: what counts for the time left."""

SPEED_ROWS = 60
"""Stretches of time that a model's speed is measured over."""


@dataclass(frozen=True)
class Rate:
    """How fast a job runs now, or ran if it has ended."""

    requests_per_s: float
    tokens_per_s: float
    """Input and output."""
    left_s: float | None
    """Seconds to its end at this rate; null when that cannot be said."""


@dataclass(frozen=True)
class Point:
    """What a job got done in one stretch of time."""

    start_ms: int
    width_ms: int
    requests: int
    failed: int
    input_tokens: int
    output_tokens: int


def stretch(began_ms: int, at_ms: int) -> tuple[int, int]:
    """Start and width of the stretch of time that a moment of a job belongs to.

    Stretches grow with the job's age, so that a plot of any job has enough points and never too many. A
    wider one begins where the narrower ones end: no two of a job overlap.
    """
    for width_ms, from_age_ms in ((60_000, 2 * 3_600_000), (10_000, 10 * 60_000)):
        start_ms = at_ms // width_ms * width_ms
        if start_ms - began_ms >= from_age_ms:
            return start_ms, width_ms
    return at_ms // 1_000 * 1_000, 1_000


def latency_bound_ms(duration_ms: int) -> int:
    """Upper bound of the latency bucket: the next power of two."""
    return 1 << max(0, duration_ms - 1).bit_length()


def count_figures(
    session: Session, job_id: str, began_ms: int | None, at_ms: int, outcomes: Sequence[Outcome]
) -> None:
    """Count results of a job that began at `began_ms`, in the transaction that writes them."""
    if not outcomes:
        return
    if run := [outcome for outcome in outcomes if outcome.has_run]:
        start_ms, width_ms = stretch(began_ms or at_ms, at_ms)
        row = {
            "job_id": job_id,
            "start_ms": start_ms,
            "width_ms": width_ms,
            "requests": len(run),
            "failed": sum(not outcome.succeeded for outcome in run),
            "input_tokens": sum(outcome.input_tokens for outcome in run),
            "output_tokens": sum(outcome.output_tokens for outcome in run),
        }
        add_counts(session, Progress, [row], ("requests", "failed", "input_tokens", "output_tokens"))
    kinds = Counter(
        (TallySubject.LATENCY, str(latency_bound_ms(outcome.duration_ms)))
        for outcome in outcomes
        if outcome.status_code is not None
    )
    kinds.update(
        (TallySubject.FAILURE, outcome.error_code or str(outcome.status_code))
        for outcome in outcomes
        if not outcome.succeeded
    )
    # In one order everywhere: two writers of one job never wait for each other in a circle.
    tallies = [
        {"job_id": job_id, "subject": subject, "key": key, "count": count}
        for (subject, key), count in sorted(kinds.items())
    ]
    add_counts(session, Tally, tallies, ("count",))


def rate(database: Database, job: Job) -> Rate:
    """How fast the job runs: over the last seconds, or over its whole run once it has ended."""
    done = job.completed + job.failed
    if job.in_progress_ms is None or done == 0:
        return Rate(0.0, 0.0, None)
    if job.status in FINAL_STATUSES:
        ended_ms = max(_ended_ms(job), job.in_progress_ms + 1)
        seconds = (ended_ms - job.in_progress_ms) / 1000
        return Rate(
            _requests_run(database, job) / seconds, (job.input_tokens + job.output_tokens) / seconds, 0.0
        )
    with database.read() as session:
        now = session.execute(select(now_ms())).scalar_one()
        since = now - max(RATE_WINDOW_MS, 2 * stretch(job.in_progress_ms, now)[1])
        requests, tokens, first = session.execute(
            select(
                func.sum(Progress.requests),
                func.sum(Progress.input_tokens + Progress.output_tokens),
                func.min(Progress.start_ms),
            ).where(Progress.job_id == job.id, Progress.start_ms >= since)
        ).one()
    if not requests:
        return Rate(0.0, 0.0, None)
    seconds = max(now - max(first, job.in_progress_ms), 1_000) / 1000
    requests_per_s = int(requests) / seconds
    return Rate(requests_per_s, int(tokens) / seconds, (job.total - done) / requests_per_s)


def _requests_run(database: Database, job: Job) -> int:
    if job.status == JobStatus.COMPLETED:
        return job.completed + job.failed  # without a query: lists of jobs are mostly of these
    with database.read() as session:
        run = session.execute(
            select(func.sum(Progress.requests)).where(Progress.job_id == job.id)
        ).scalar_one()
    return int(run or 0)


def _ended_ms(job: Job) -> int:
    moments = (job.completed_ms, job.failed_ms, job.expired_ms, job.cancelled_ms, job.finalizing_ms)
    return max(moment for moment in (*moments, job.created_ms) if moment is not None)


def history(database: Database, job_id: str, points: int = 120) -> list[Point]:
    """The job's course in at most `points` stretches of equal width, empty ones included."""
    with database.read() as session:
        rows = session.execute(
            select(
                Progress.start_ms,
                Progress.width_ms,
                Progress.requests,
                Progress.failed,
                Progress.input_tokens,
                Progress.output_tokens,
            )
            .where(Progress.job_id == job_id)
            .order_by(Progress.start_ms)
        ).all()
    if not rows:
        return []
    begin = rows[0].start_ms
    end = rows[-1].start_ms + rows[-1].width_ms
    widest = max(row.width_ms for row in rows)
    width = max(widest, -(-(end - begin) // points // 1_000) * 1_000)
    sums = [[0, 0, 0, 0] for _ in range(-(-(end - begin) // width))]
    for row in rows:
        into = sums[(row.start_ms - begin) // width]
        for place, amount in enumerate(row[2:]):
            into[place] += amount
    return [Point(begin + place * width, width, *amounts) for place, amounts in enumerate(sums)]


def tally(database: Database, job_id: str, subject: TallySubject) -> dict[str, int]:
    """How many results there are of each kind."""
    with database.read() as session:
        rows = session.execute(
            select(Tally.key, Tally.count).where(Tally.job_id == job_id, Tally.subject == subject)
        )
        return {row.key: row[1] for row in rows}


def model_speed(database: Database, model: str) -> float | None:
    """Tokens a second that the model did lately, all its workers together; null when it never ran."""
    with database.read() as session:
        rows = session.execute(
            select(
                Progress.start_ms,
                Progress.width_ms,
                func.sum(Progress.input_tokens + Progress.output_tokens),
            )
            .join(Job, Job.id == Progress.job_id)
            .where(Job.model == model)
            .group_by(Progress.start_ms, Progress.width_ms)
            .order_by(Progress.start_ms.desc(), Progress.width_ms)
            .limit(SPEED_ROWS)
        ).all()
    tokens = sum(int(tokens) for _, _, tokens in rows)
    seconds = _covered_ms([(start, start + width) for start, width, _ in reversed(rows)]) / 1000
    return tokens / seconds if tokens else None


def _covered_ms(stretches: Sequence[tuple[int, int]]) -> int:
    """Time in at least one of these stretches, which begin in this order: those of different jobs overlap."""
    covered = 0
    end = stretches[0][0] if stretches else 0
    for begin, until in stretches:
        covered += max(0, until - max(begin, end))
        end = max(end, until)
    return covered
