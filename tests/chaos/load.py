"""Clients of a mill under test: they submit, repeat, cancel, delete, and remember every answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import httpx

from tests.chaos.submissions import ENDPOINT, Answer, Submission, Way, draw

JOBS_PER_S = 3.0
MOST_AT_ONCE = 48
"""Submissions that are looked after at a time."""

TIMEOUT_S = 12.0
"""How long a client waits for an answer; a single request's comes later than others'."""

RETRY_PAUSE_S = 0.7
MOST_RETRIES = 60
"""A client with an idempotency key gives up after so many: longer than any fault lasts."""

SHARE_CANCELLED = 0.15
SHARE_DELETED = 0.15
SHARE_MOVED = 0.1
"""Of the submissions: those whose lane is changed."""
SHARE_REPEATED = 0.2
"""Of the accepted ones with a key: those that are sent again all the same."""
SHARE_DEADLY = 0.03
MOST_DEADLY = 12
"""Each takes several engines with it, and all that is in them."""

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True)
class Client:
    """One HTTP client of all submissions, and how to look after one."""

    http: httpx.AsyncClient
    random: Random
    give_up: threading.Event

    async def look_after(self, submission: Submission) -> None:
        """Submit, and do to the job what its client does."""
        if submission.way is Way.SINGLE:
            submission.answers.append(await self._single(submission))
            return
        # Drawn before anything is answered: what a client intends does not depend on the mill.
        intent = self.random.random()
        delay_s = self.random.expovariate(1)
        lane = self.random.choice(("urgent", "normal", "bulk"))
        repeats = submission.key is not None and self.random.random() < SHARE_REPEATED
        job_id = await self._submit(submission)
        if job_id is None:
            return
        if repeats:
            submission.answers.append(await self.attempt(submission))
        if intent < SHARE_CANCELLED:
            await asyncio.sleep(delay_s)
            submission.cancel_asked = True
            status = await self._until_answered(lambda: self.http.post(f"/api/jobs/{job_id}/cancel"))
            submission.cancel_granted = status == 200
        elif intent < SHARE_CANCELLED + SHARE_MOVED:
            await asyncio.sleep(delay_s)
            await self._until_answered(
                lambda: self.http.patch(f"/api/jobs/{job_id}", json={"priority": lane})
            )
        elif intent < SHARE_CANCELLED + SHARE_MOVED + SHARE_DELETED:
            await self._delete_at_end(submission, job_id)

    async def _submit(self, submission: Submission) -> str | None:
        for _ in range(MOST_RETRIES if submission.is_retried else 1):
            answer = await self.attempt(submission)
            submission.answers.append(answer)
            if answer.id is not None:
                return answer.id
            if self.give_up.is_set():
                return None
            await asyncio.sleep(RETRY_PAUSE_S)
        return None

    async def attempt(self, submission: Submission) -> Answer:
        """Submit once."""
        headers = {} if submission.key is None else {"Idempotency-Key": submission.key}
        metadata = {"submission": str(submission.number)}
        if submission.way is Way.PROMPTS:
            asked = {
                "prompts": [submission.prompt(index) for index in range(len(submission.asks))],
                "priority": submission.lane,
                "window": submission.window,
                "metadata": metadata,
            }
            return await _answer(self.http.post("/api/jobs", json=asked, headers=headers))
        if submission.file_id is None:
            upload = await self._upload(submission)
            if upload.id is None:
                return replace(upload, code=f"upload {upload.code or ''}".strip())
            # The same for all attempts: it is part of what an idempotency key stands for.
            submission.file_id = upload.id
        asked = {
            "input_file_id": submission.file_id,
            "endpoint": ENDPOINT,
            "completion_window": submission.window,
            "priority": submission.lane,
            "metadata": metadata,
        }
        return await _answer(self.http.post("/v1/batches", json=asked, headers=headers))

    async def _upload(self, submission: Submission) -> Answer:
        file = (f"{submission.number}.jsonl", submission.file())
        return await _answer(self.http.post("/v1/files", data={"purpose": "batch"}, files={"file": file}))

    async def _single(self, submission: Submission) -> Answer:
        answer = await _answer(self.http.post(ENDPOINT, json=submission.body(0), timeout=TIMEOUT_S * 3))
        # The simulated engine gives its answer the request's id: job, index, token.
        job_id = None if answer.id is None else answer.id.rsplit("-", 2)[0]
        return Answer(answer.status, answer.code, job_id)

    async def _delete_at_end(self, submission: Submission, job_id: str) -> None:
        while not self.give_up.is_set():
            shown = await _shown(self.http.get(f"/api/jobs/{job_id}"))
            if shown.get("status") in ENDED:
                submission.delete_asked = True
                status = await self._until_answered(lambda: self.http.delete(f"/api/jobs/{job_id}"))
                # Not found: it was deleted by an attempt that got no answer.
                submission.deleted = status in (204, 404)
                return
            await asyncio.sleep(0.5)

    async def _until_answered(self, ask: Callable[[], Awaitable[httpx.Response]]) -> int | None:
        """Ask until the answer is not one to try again after; its status."""
        while not self.give_up.is_set():
            answer = await _answer(ask())
            if answer.status is not None and answer.status < 500:
                return answer.status
            await asyncio.sleep(RETRY_PAUSE_S)
        return None


class Load:
    """Submits on a thread of its own, from its start until it is told to end."""

    def __init__(self, url: str, key: str, seed: int) -> None:
        self.submissions: list[Submission] = []
        self._url = url
        self._key = key
        self._random = Random(seed)
        self._ending = threading.Event()
        self._give_up = threading.Event()
        self._pool = ThreadPoolExecutor(1, "load")
        self._clients: Future[None] | None = None

    def start(self) -> None:
        """Begin to submit."""
        self._clients = self._pool.submit(lambda: asyncio.run(self._submit_all()))

    def end(self) -> None:
        """Submit nothing new; what was begun goes on."""
        self._ending.set()

    @property
    def is_done(self) -> bool:
        """Whether every client has got what it wanted."""
        return self._clients is not None and self._clients.done()

    def close(self) -> None:
        """Give up what still goes on, and return when nothing does."""
        self._ending.set()
        self._give_up.set()
        self._pool.shutdown()
        if self._clients is not None:
            self._clients.result()

    async def _submit_all(self) -> None:
        limits = httpx.Limits(max_connections=MOST_AT_ONCE)
        headers = {"Authorization": f"Bearer {self._key}"}
        seats = asyncio.Semaphore(MOST_AT_ONCE)
        deadly = 0
        async with (
            httpx.AsyncClient(base_url=self._url, headers=headers, timeout=TIMEOUT_S, limits=limits) as http,
            asyncio.TaskGroup() as clients,
        ):
            while not self._ending.is_set():
                number = len(self.submissions)
                may_die = deadly < MOST_DEADLY and self._random.random() < SHARE_DEADLY
                deadly += may_die
                submission = draw(self._random, number, may_die=may_die)
                self.submissions.append(submission)
                client = Client(http, Random(self._random.random()), self._give_up)
                await seats.acquire()
                task = clients.create_task(client.look_after(submission))
                task.add_done_callback(lambda _: seats.release())
                await asyncio.sleep(self._random.expovariate(JOBS_PER_S))


async def _answer(asked: Awaitable[httpx.Response]) -> Answer:
    try:
        response = await asked
    except httpx.TransportError as fault:
        return Answer(None, type(fault).__name__)
    said = _json(response)
    if response.status_code >= 400:
        error = said.get("error")
        return Answer(response.status_code, error.get("code") if isinstance(error, dict) else None)
    return Answer(response.status_code, id=said.get("id"))


async def _shown(asked: Awaitable[httpx.Response]) -> dict[str, Any]:
    try:
        response = await asked
    except httpx.TransportError:
        return {}
    return _json(response) if response.status_code == 200 else {}


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        said = response.json()
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
