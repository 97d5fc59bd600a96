"""The checker itself: a mill that did everything right has no violations, and each wrong thing is found."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from sqlalchemy import text

from tasks.backends import Backends
from tasks.chunks import lease_chunk, record_results
from tasks.finalise import settle
from tasks.intake import run_intake
from tasks.outcomes import Outcome
from tests.chaos.history import keep_what_is_deleted, read_history
from tests.chaos.invariants import Evidence, violations
from tests.chaos.submissions import Answer, Ask, Submission, Way
from tests.samples import put_on_runway, submit

WORKER_PID = 4711
WORKER = f"sim@host-{WORKER_PID}-0a1b"
OTHER_PID = 4712
ASKS = [Ask.ANSWER, Ask.REFUSE, Ask.DIE, Ask.ANSWER]


class Past:
    """One job that went as it should, and the means to make it look otherwise."""

    def __init__(self, backends: Backends, folder: Path) -> None:
        self._backends = backends
        self._log = folder / "engine.log"
        self.submission = Submission(0, Way.BATCH, list(ASKS), "normal", key=None)
        keep_what_is_deleted(backends.database)
        self.job_id = submit(backends, self.submission.file(), metadata={"submission": "0"})
        self.submission.answers.append(Answer(200, id=self.job_id))
        run_intake(backends, self.job_id)
        put_on_runway(backends, self.job_id)
        lease = lease_chunk(backends.database, self.job_id, 0, WORKER, 30)
        assert lease is not None
        record_results(
            backends.database, lease, list(self._outcomes()), worker=WORKER, lease_s=30, finish=True
        )
        settle(backends, self.job_id)
        self.calls = [(WORKER_PID, index, lease.token) for index in range(len(ASKS))]

    def _outcomes(self) -> Iterable[Outcome]:
        for index, ask in enumerate(ASKS):
            status = {Ask.ANSWER: 200, Ask.REFUSE: 400, Ask.DIE: None}[ask]
            yield Outcome(
                index,
                self.submission.custom_id(index),
                status,
                b"{}" if status else None,
                "engine_crash" if status is None else None,
                input_tokens=3 if status == 200 else 0,
                output_tokens=4 if status == 200 else 0,
                duration_ms=5,
            )

    def change(self, statement: str) -> None:
        """Spoil the database."""
        with self._backends.database.write() as session:
            session.execute(text(statement))

    def violations(self) -> list[str]:
        """What the checker finds."""
        logs = []
        for pid in {pid for pid, _, _ in self.calls}:
            lines = [
                json.dumps(
                    {
                        "event": "simulated_request",
                        "request": f"{self.job_id}-{index}-{token}",
                        "timestamp": "2026-01-01T00:00:00Z",
                    }
                )
                for caller, index, token in self.calls
                if caller == pid
            ]
            log = self._log.with_suffix(f".{pid}")
            log.write_text("\n".join([*lines, '{"event": "simulated_request", "req']))
            logs.append((pid, log))
        return violations(Evidence([self.submission], read_history(self._backends.database, logs)))


@pytest.fixture
def past(sqlite_backends: Backends, tmp_path: Path) -> Past:
    """A job that went well."""
    return Past(sqlite_backends, tmp_path)


def test_a_mill_that_did_everything_right_has_no_violations(backends: Backends, tmp_path: Path) -> None:
    assert Past(backends, tmp_path).violations() == []


def test_rows_that_were_deleted_are_remembered(backends: Backends, tmp_path: Path) -> None:
    past = Past(backends, tmp_path)
    past.submission.delete_asked = past.submission.deleted = True
    past.change("UPDATE jobs SET deleted_ms = 1")
    past.change("DELETE FROM results")
    past.change("DELETE FROM jobs")
    assert past.violations() == []


@pytest.mark.parametrize(
    ("check", "statement"),
    [
        ("accepted_is_kept", "DELETE FROM jobs; DELETE FROM gone_jobs"),
        ("deleted_is_gone", "DELETE FROM jobs"),
        ("every_job_ends", "UPDATE jobs SET status = 'in_progress'"),
        ("every_job_ends", "UPDATE jobs SET status = 'cancelled'"),
        ("every_job_ends", "UPDATE jobs SET status = 'failed'"),
        ("every_request_has_one_result", "DELETE FROM results WHERE idx = 3"),
        ("every_request_has_one_result", "UPDATE results SET custom_id = 's0-1' WHERE idx = 0"),
        ("every_request_has_one_result", "UPDATE jobs SET total = 5"),
        ("counters_are_the_rows", "UPDATE jobs SET completed = completed + 1"),
        ("counters_are_the_rows", "UPDATE jobs SET output_tokens = output_tokens + 1"),
        ("counters_are_the_rows", "UPDATE jobs SET output_bytes = output_bytes + 1"),
        ("counters_are_the_rows", "UPDATE jobs SET error_bytes = error_bytes - 1"),
        ("figures_are_the_rows", "UPDATE progress SET requests = requests + 1"),
        ("figures_are_the_rows", "UPDATE tallies SET count = count + 1 WHERE subject = 'failure'"),
        ("figures_are_the_rows", "UPDATE tallies SET count = count + 1 WHERE subject = 'latency'"),
        ("figures_are_the_rows", "UPDATE usage SET requests = 2 * requests"),
        ("nothing_is_held", "UPDATE chunks SET state = 'leased'"),
        ("nothing_is_held", "UPDATE chunks SET state = 'queued'"),
        ("requests_end_as_they_asked", "UPDATE results SET status_code = 500 WHERE idx = 0"),
        (
            "requests_end_as_they_asked",
            "UPDATE results SET status_code = NULL, error_code = 'engine_crash' WHERE idx = 0",
        ),
        (
            "requests_end_as_they_asked",
            "UPDATE results SET status_code = NULL, error_code = 'batch_expired' WHERE idx = 0",
        ),
        ("result_files_are_the_results", "UPDATE files SET bytes = bytes + 1 WHERE purpose = 'batch_output'"),
        ("result_files_are_the_results", "DELETE FROM files WHERE purpose = 'batch_output'"),
    ],
)
def test_a_spoilt_database_is_found(past: Past, check: str, statement: str) -> None:
    for each in statement.split("; "):
        past.change(each)
    assert check in {found.partition(":")[0] for found in past.violations()}


def _again_under_the_same_lease(past: Past) -> None:
    past.calls.append((OTHER_PID, 0, 1))


def _again_under_a_later_lease(past: Past) -> None:
    past.calls.append((OTHER_PID, 0, 2))


def _never(past: Past) -> None:
    past.calls = [call for call in past.calls if call[1] != 0]


def _by_another_worker_only(past: Past) -> None:
    past.calls = [(OTHER_PID, index, token) for _, index, token in past.calls]


@pytest.mark.parametrize(
    "spoil", [_again_under_the_same_lease, _again_under_a_later_lease, _never, _by_another_worker_only]
)
def test_a_request_that_ran_in_vain_or_never_is_found(past: Past, spoil: Callable[[Past], None]) -> None:
    spoil(past)
    assert {found.partition(":")[0] for found in past.violations()} == {"no_request_runs_in_vain"}


def test_a_request_may_run_again_under_each_lease_until_its_result_is_recorded(past: Past) -> None:
    past.calls = [(OTHER_PID, 0, 0), *past.calls]
    assert past.violations() == []


@pytest.mark.parametrize(
    ("answer", "is_found"),
    [
        (Answer(503, "unavailable"), True),
        (Answer(507, "storage_full"), True),
        (Answer(503, "outcome_unknown"), False),
        (Answer(None, "ReadTimeout"), False),
    ],
)
def test_a_job_whose_client_was_refused_is_found(past: Past, answer: Answer, is_found: bool) -> None:
    past.submission.answers = [answer]
    found = {found.partition(":")[0] for found in past.violations()}
    assert found == ({"nothing_runs_twice_or_uninvited"} if is_found else set())


def test_a_granted_cancel_without_an_effect_is_found(past: Past) -> None:
    past.submission.cancel_asked = past.submission.cancel_granted = True
    assert {found.partition(":")[0] for found in past.violations()} == {"every_job_ends"}


def test_two_jobs_of_one_submission_are_found(past: Past, sqlite_backends: Backends) -> None:
    submit(sqlite_backends, past.submission.file(), metadata={"submission": "0"})
    assert "nothing_runs_twice_or_uninvited" in {found.partition(":")[0] for found in past.violations()}


def test_a_deleted_job_that_is_still_there_is_found(past: Past) -> None:
    past.submission.delete_asked = past.submission.deleted = True
    assert {found.partition(":")[0] for found in past.violations()} == {"deleted_is_gone"}
