"""What must be true of a mill that has settled, whatever was done to it. Each check yields its violations."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tasks.ids import result_file_id
from tasks.outcomes import NEVER_RUN
from tasks.tables import FINAL_STATUSES, ChunkState, JobKind, JobStatus, ResultSet, TallySubject
from tests.chaos.history import History, Recorded
from tests.chaos.submissions import Ask, Submission, Way

MOST_SHOWN = 5
"""Requests that one violation names."""

MAY_BE_ACCEPTED = frozenset({"outcome_unknown"})
"""Codes of refusals that say themselves that the job may have been made."""


@dataclass(frozen=True)
class Evidence:
    """Both sides: what clients were told, and what the mill has."""

    submissions: list[Submission]
    history: History

    def of(self, job_id: str) -> Submission | None:
        """The submission that a job was made for; null for a single request without an answer."""
        row = self.history.jobs[job_id]
        number = (_json(row["metadata"]) or {}).get("submission")
        if number is not None:
            return self.submissions[int(number)]
        return next((each for each in self.submissions if job_id in each.ids), None)

    def ended(self) -> Iterator[tuple[str, Any, list[Recorded]]]:
        """Id, row and results of each job that has ended."""
        for job_id, row in self.history.jobs.items():
            if row["status"] in FINAL_STATUSES:
                yield job_id, row, self.history.results.get(job_id, [])


Check = Callable[[Evidence], Iterator[str]]


def violations(evidence: Evidence) -> list[str]:
    """All that is not as it must be."""
    return [f"{check.__name__}: {found}" for check in CHECKS for found in check(evidence)]


def accepted_is_kept(evidence: Evidence) -> Iterator[str]:
    """Every job that a client was told of exists, and every attempt with one key was told of the same."""
    for submission in evidence.submissions:
        for job_id in submission.ids - evidence.history.jobs.keys():
            yield f"{job_id} was accepted ({submission.way} {submission.number}) and is unknown"
        if len(submission.ids) > 1:
            yield f"submission {submission.number} with one idempotency key got jobs {sorted(submission.ids)}"


def nothing_runs_twice_or_uninvited(evidence: Evidence) -> Iterator[str]:
    """Each submission has one job at most, and one whose client was refused and holds no key has none."""
    made: dict[int, list[str]] = defaultdict(list)
    for job_id, row in evidence.history.jobs.items():
        number = (_json(row["metadata"]) or {}).get("submission")
        if number is not None:
            made[int(number)].append(job_id)
        elif row["kind"] != JobKind.SINGLE:
            yield f"{job_id} belongs to no submission"
    for number, job_ids in made.items():
        submission = evidence.submissions[number]
        if len(job_ids) > 1:
            yield f"submission {number} became {len(job_ids)} jobs: {job_ids}; answers {submission.answers}"
        known = submission.key is not None or submission.ids
        refused = [each for each in submission.answers if each.status is not None and each.status >= 400]
        if not known and refused and not any(each.code in MAY_BE_ACCEPTED for each in refused):
            yield f"submission {number} was refused ({refused}) and runs as {job_ids}"


def every_job_ends(evidence: Evidence) -> Iterator[str]:
    """In a final state, and in one that somebody asked for."""
    for job_id, row in evidence.history.jobs.items():
        status, submission = row["status"], evidence.of(job_id)
        if status not in FINAL_STATUSES:
            chunks = Counter(chunk["state"] for chunk in evidence.history.chunks.get(job_id, []))
            done = row["completed"] + row["failed"]
            yield f"{job_id} is {status}, {done} of {row['total']} done, chunks {dict(chunks)}"
            continue
        if row["kind"] == JobKind.SINGLE:
            # Its web server cancels it when nobody waits any more, or dies and lets it expire.
            continue
        if status == JobStatus.CANCELLED and not (submission and submission.cancel_asked):
            yield f"{job_id} is cancelled, and nobody asked for it"
        may_expire = submission is not None and submission.may_expire
        if status == JobStatus.FAILED or (status == JobStatus.EXPIRED and not may_expire):
            yield f"{job_id} is {status}: {row['errors']}"
        if submission and submission.cancel_granted and status != JobStatus.CANCELLED:
            yield f"{job_id} is {status}, and its cancel was granted"


def every_request_has_one_result(evidence: Evidence) -> Iterator[str]:
    """Each custom_id once: lines of the output and of the error file together are all requests."""
    for job_id, row, results in evidence.ended():
        indices = Counter(each.result.index for each in results)
        if twice := [index for index, count in indices.items() if count > 1]:
            yield f"{job_id}: {len(twice)} requests have two results: {twice[:MOST_SHOWN]}"
        submission = evidence.of(job_id)
        if row["total"] == 0 and row["status"] in (JobStatus.CANCELLED, JobStatus.EXPIRED):
            # It ended before its input was read: nobody knows how many there are.
            wanted = 0
        else:
            wanted = row["total"] if submission is None else len(submission.asks)
        if missing := set(range(wanted)) - indices.keys():
            yield f"{job_id} ({row['status']}): {len(missing)} of {wanted} without a result: {_some(missing)}"
        if row["total"] != wanted or len(results) > wanted:
            yield f"{job_id}: {wanted} requests were sent, total is {row['total']}, results {len(results)}"
        if submission is not None and submission.way is not Way.SINGLE:
            strange = [
                (each.result.index, each.result.custom_id)
                for each in results
                if each.result.custom_id != submission.custom_id(each.result.index)
            ]
            if strange:
                yield f"{job_id}: results carry other requests' custom_id: {strange[:MOST_SHOWN]}"


def counters_are_the_rows(evidence: Evidence) -> Iterator[str]:
    """What a job counts is what its results are, to the byte."""
    for job_id, row, results in evidence.ended():
        good = [each for each in results if each.result.status_code == 200]
        bad = [each for each in results if each.result.status_code != 200]
        expected = {
            "completed": len(good),
            "failed": len(bad),
            "input_tokens": sum(each.result.input_tokens for each in results),
            "output_tokens": sum(each.result.output_tokens for each in results),
            "output_bytes": sum(len(each.line) for each in good),
            "error_bytes": sum(len(each.line) for each in bad),
        }
        wrong = {
            name: f"{row[name]}, rows say {value}" for name, value in expected.items() if row[name] != value
        }
        if wrong:
            yield f"{job_id} ({row['status']}): {wrong}"


def figures_are_the_rows(evidence: Evidence) -> Iterator[str]:
    """Progress, tallies and usage count each result once."""
    history = evidence.history
    for job_id, _, results in evidence.ended():
        if job_id in history.purged:
            continue
        run = [each.result for each in results if each.result.error_code not in NEVER_RUN]
        expected = {
            "requests": len(run),
            "failed": sum(result.status_code != 200 for result in run),
            "input_tokens": sum(result.input_tokens for result in run),
            "output_tokens": sum(result.output_tokens for result in run),
        }
        counted = {name: sum(row[name] for row in history.progress.get(job_id, [])) for name in expected}
        if counted != expected:
            yield f"{job_id}: progress counts {counted}, rows say {expected}"
        tallies = {(row["subject"], row["key"]): row["count"] for row in history.tallies.get(job_id, [])}
        failures = Counter(
            (TallySubject.FAILURE.value, each.result.error_code or str(each.result.status_code))
            for each in results
            if each.result.status_code != 200
        )
        if failures != {key: count for key, count in tallies.items() if key[0] == TallySubject.FAILURE}:
            yield f"{job_id}: tallies of failures {tallies}, rows say {dict(failures)}"
        latencies = sum(count for key, count in tallies.items() if key[0] == TallySubject.LATENCY)
        answered = sum(each.result.status_code is not None for each in results)
        if latencies != answered:
            yield f"{job_id}: latencies of {latencies} requests, {answered} were answered"
    expected = {
        "requests": sum(row["completed"] + row["failed"] for _, row, _ in _with_model(evidence)),
        "failed_requests": sum(row["failed"] for _, row, _ in _with_model(evidence)),
        "input_tokens": sum(row["input_tokens"] for _, row, _ in _with_model(evidence)),
        "output_tokens": sum(row["output_tokens"] for _, row, _ in _with_model(evidence)),
    }
    counted = {name: int(sum(row[name] for row in history.usage)) for name in expected}
    if counted != expected:
        yield f"usage counts {counted}, jobs say {expected}"


def nothing_is_held(evidence: Evidence) -> Iterator[str]:
    """No lease is left, and no chunk of an ended job waits for a worker."""
    for job_id, chunks in evidence.history.chunks.items():
        held = [chunk for chunk in chunks if chunk["state"] in (ChunkState.LEASED, ChunkState.QUEUED)]
        if held:
            shown = [(chunk["seq"], chunk["state"], chunk["lease_owner"]) for chunk in held[:MOST_SHOWN]]
            yield f"{job_id} ({evidence.history.jobs[job_id]['status']}): {shown}"


def no_request_runs_in_vain(evidence: Evidence) -> Iterator[str]:
    """By the engines' own logs, a request enters an engine once for each lease, until it has a result.

    Allowed are as many calls as its chunk had leases up to the one under which the result was recorded: each
    lease before that was lost or given back while the request had no result. So a token comes once, and none
    is greater than the last one that the recording worker's process had.
    """
    history = evidence.history
    recorded: dict[tuple[str, int], Recorded] = {
        (job_id, each.result.index): each for job_id, results in history.results.items() for each in results
    }
    for (job_id, index), calls in history.calls.items():
        tokens = Counter(call.token for call in calls)
        if twice := [token for token, count in tokens.items() if count > 1]:
            yield f"{job_id}-{index} entered an engine more than once under the leases {twice}: {calls}"
        result = recorded.get((job_id, index))
        if result is None or result.result.status_code is None:
            continue
        pid = int(result.worker.rsplit("-", 2)[1])
        own = [call.token for call in calls if call.pid == pid]
        if not own:
            yield f"{job_id}-{index} has a result of {result.worker}, which never ran it: {calls}"
        elif max(tokens) > max(own):
            yield f"{job_id}-{index} entered an engine again after {result.worker} had recorded it: {calls}"
    for key, result in recorded.items():
        if result.result.status_code is not None and key not in history.calls:
            yield f"{key[0]}-{key[1]} has an answer and never entered an engine"


def requests_end_as_they_asked(evidence: Evidence) -> Iterator[str]:
    """One that kills engines fails alone, a refused one with the engine's status; all others succeed."""
    for job_id, row, results in evidence.ended():
        submission = evidence.of(job_id)
        if submission is None:
            continue
        for each in results:
            result = each.result
            ending = result.error_code or str(result.status_code)
            expected = {Ask.ANSWER: "200", Ask.REFUSE: "400", Ask.DIE: "engine_crash"}
            if result.index >= len(submission.asks) or ending == expected[submission.asks[result.index]]:
                continue
            if ending == "batch_cancelled" and row["status"] == JobStatus.CANCELLED:
                continue
            may_expire = submission.may_expire or submission.way is Way.SINGLE
            if ending == "batch_expired" and may_expire and row["status"] == JobStatus.EXPIRED:
                continue
            yield f"{job_id}-{result.index} asked to {submission.asks[result.index]}, ended as {ending}"


def result_files_are_the_results(evidence: Evidence) -> Iterator[str]:
    """An ended job shows its results as files of the right size."""
    history = evidence.history
    for job_id, row, _ in evidence.ended():
        if row["deleted_ms"] is not None or row["kind"] == JobKind.SINGLE:
            continue
        for which, count, size in (
            (ResultSet.OUTPUT, row["completed"], row["output_bytes"]),
            (ResultSet.ERRORS, row["failed"], row["error_bytes"]),
        ):
            file = history.files.get(result_file_id(job_id, which))
            shown = None if file is None else file["bytes"]
            if shown != (size if count else None):
                yield f"{job_id}: the {which} file has {shown} bytes, the results {size}"


def deleted_is_gone(evidence: Evidence) -> Iterator[str]:
    """Nothing is left of a job whose client was told that it is deleted."""
    history = evidence.history
    for submission in evidence.submissions:
        for job_id in submission.ids if submission.deleted else ():
            if job_id not in history.purged:
                yield f"{job_id} was deleted and is still there"
    for job_id in history.purged:
        owner = evidence.of(job_id)
        if history.jobs[job_id]["kind"] != JobKind.SINGLE and not (owner and owner.delete_asked):
            yield f"{job_id} is purged, and nobody deleted it"
        if job_id in history.left_results or history.chunks.get(job_id):
            yield f"{job_id} is purged, and rows of it are left"


CHECKS: tuple[Check, ...] = (
    accepted_is_kept,
    nothing_runs_twice_or_uninvited,
    every_job_ends,
    every_request_has_one_result,
    counters_are_the_rows,
    figures_are_the_rows,
    nothing_is_held,
    no_request_runs_in_vain,
    requests_end_as_they_asked,
    result_files_are_the_results,
    deleted_is_gone,
)


def _with_model(evidence: Evidence) -> Iterator[tuple[str, Any, list[Recorded]]]:
    return (each for each in evidence.ended() if each[1]["model"] is not None)


def _some(indices: set[int]) -> str:
    return f"{sorted(indices)[:MOST_SHOWN]}"


def _json(value: Any) -> Any:
    """SQLite gives JSON as text where PostgreSQL gives what it means."""
    return json.loads(value) if isinstance(value, str) else value
