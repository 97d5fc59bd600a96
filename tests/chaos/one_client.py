"""One client of a mill under test, who does one thing at a time, and the check of all that came of it."""

import asyncio
import threading
from random import Random
from typing import Any

import httpx

from tasks.tables import FINAL_STATUSES
from tests.chaos.history import History, read_history
from tests.chaos.invariants import Evidence, violations
from tests.chaos.load import TIMEOUT_S, Client
from tests.chaos.mill import Mill
from tests.chaos.run import is_settled
from tests.chaos.submissions import Answer, Ask, Submission, Way
from tests.waiting import eventually

SETTLE_S = 60.0


class OneClient:
    """Submits to a mill, asks for its jobs, and remembers every answer for the check at the end."""

    def __init__(self, mill: Mill) -> None:
        self.mill = mill
        self._headers = {"Authorization": f"Bearer {mill.new_key()}"}
        self._submissions: list[Submission] = []

    def new(self, requests: int, *, way: Way = Way.PROMPTS, **values: Any) -> Submission:
        """A submission that is not sent yet."""
        number = len(self._submissions)
        key = values.pop("key", None)
        submission = Submission(number, way, [Ask.ANSWER] * requests, lane="normal", key=key, **values)
        self._submissions.append(submission)
        return submission

    def attempt(self, submission: Submission) -> Answer:
        """Send it once."""

        async def once() -> Answer:
            async with httpx.AsyncClient(
                base_url=self.mill.url, headers=self._headers, timeout=TIMEOUT_S
            ) as http:
                return await Client(http, Random(0), threading.Event()).attempt(submission)

        answer = asyncio.run(once())
        submission.answers.append(answer)
        return answer

    def submit(self, requests: int, **values: Any) -> tuple[Submission, str]:
        """Send something new that is accepted; the submission and its job's id."""
        submission = self.new(requests, **values)
        answer = self.attempt(submission)
        assert answer.id is not None, answer
        return submission, answer.id

    def ask(self, method: str, path: str) -> httpx.Response:
        """One call.

        Raises:
            httpx.TransportError: the connection broke.
        """
        return httpx.request(method, f"{self.mill.url}{path}", headers=self._headers, timeout=TIMEOUT_S)

    def until_results(self, job_id: str, count: int) -> None:
        """Return when a job has so many results."""
        eventually(lambda: self._done(job_id) >= count, f"{count} results", longest_s=SETTLE_S)

    def until_calls(self, job_id: str, count: int) -> None:
        """Return when an engine was called so often for a job, whatever is recorded of it."""

        def calls() -> int:
            history = read_history(self.mill.backends.database, self.mill.engine_logs())
            return sum(len(calls) for (of, _), calls in history.calls.items() if of == job_id)

        eventually(lambda: calls() >= count, f"{count} calls", longest_s=SETTLE_S)

    def until_ended(self, job_id: str) -> str:
        """Return when a job has ended; its status."""
        eventually(lambda: self._status(job_id) in FINAL_STATUSES, f"the end of {job_id}", longest_s=SETTLE_S)
        return self._status(job_id)

    def history(self) -> History:
        """Everything that the mill did, once nothing of it goes on."""
        eventually(lambda: is_settled(self.mill), "the end of all work", longest_s=SETTLE_S, pause_s=0.05)
        return read_history(self.mill.backends.database, self.mill.engine_logs())

    def violations(self) -> list[str]:
        """What is not as it must be, of all that was submitted so far."""
        return violations(Evidence(self._submissions, self.history()))

    def _done(self, job_id: str) -> int:
        counts = self._shown(job_id).get("request_counts", {})
        return int(counts.get("completed", 0)) + int(counts.get("failed", 0))

    def _status(self, job_id: str) -> str:
        return str(self._shown(job_id).get("status"))

    def _shown(self, job_id: str) -> dict[str, Any]:
        try:
            response = self.ask("GET", f"/v1/batches/{job_id}")
        except httpx.TransportError:
            return {}
        shown: dict[str, Any] = response.json() if response.status_code == 200 else {}
        return shown
