"""What a client hands over and what it was told: the one side of the comparison that the checker makes."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from config.catalogue import Simulation
from tests.chaos.mill import MODEL

ENDPOINT = "/v1/chat/completions"


class Ask(StrEnum):
    """What a request asks the simulated engine to do."""

    ANSWER = "answer"
    REFUSE = "refuse"
    DIE = "die"


class Way(StrEnum):
    """How work comes in."""

    PROMPTS = "prompts"
    """`POST /api/jobs`"""
    BATCH = "batch"
    """`POST /v1/files`, then `POST /v1/batches`"""
    SINGLE = "single"
    """`POST /v1/chat/completions`"""


@dataclass(frozen=True)
class Answer:
    """What one attempt of a submission was answered."""

    status: int | None
    """Null: the connection broke, or no answer came in time."""
    code: str | None = None
    """Of an error's envelope."""
    id: str | None = None
    """Of the job that was accepted."""


@dataclass
class Submission:
    """One piece of work, submitted once or more often."""

    number: int
    way: Way
    asks: list[Ask]
    lane: str
    key: str | None
    """Idempotency key."""
    window: str = "24h"
    """Time until it expires."""
    file_id: str | None = None
    """Of the input that was uploaded for it."""
    answers: list[Answer] = field(default_factory=list)
    cancel_asked: bool = False
    cancel_granted: bool = False
    delete_asked: bool = False
    deleted: bool = False

    @property
    def ids(self) -> set[str]:
        """Of all jobs that were accepted for it."""
        return {answer.id for answer in self.answers if answer.id is not None}

    @property
    def may_expire(self) -> bool:
        """Whether its time may run out within a run."""
        return self.window.endswith("s")

    @property
    def is_retried(self) -> bool:
        """Whether a client with this submission tries again: only one with a key can do so safely."""
        return self.key is not None

    def custom_id(self, index: int) -> str:
        """What identifies the request in the results."""
        return f"row-{index + 1}" if self.way is Way.PROMPTS else f"s{self.number}-{index}"

    def prompt(self, index: int) -> str:
        """The text of a request, with the marker that the engine obeys."""
        markers = {
            Ask.ANSWER: "Say",
            Ask.REFUSE: Simulation().error_marker,
            Ask.DIE: Simulation().death_marker,
        }
        return f"{markers[self.asks[index]]} {self.number}-{index}"

    def body(self, index: int) -> dict[str, Any]:
        """One request as the endpoint has it."""
        return {"model": MODEL, "messages": [{"role": "user", "content": self.prompt(index)}]}

    def file(self) -> bytes:
        """All requests as an input file."""
        return b"".join(
            json.dumps(
                {
                    "custom_id": self.custom_id(index),
                    "method": "POST",
                    "url": ENDPOINT,
                    "body": self.body(index),
                }
            ).encode()
            + b"\n"
            for index in range(len(self.asks))
        )


def draw(random: Random, number: int, *, may_die: bool) -> Submission:
    """A submission of some kind; `may_die` lets one request of it kill the engine."""
    way = random.choices(list(Way), weights=(4, 4, 2))[0]
    most = random.choices((10, 100, 400), weights=(5, 3, 2))[0]
    count = 1 if way is Way.SINGLE else random.randint(1, most)
    asks = [Ask.REFUSE if random.random() < 0.03 else Ask.ANSWER for _ in range(count)]
    if may_die and way is not Way.SINGLE:
        asks[random.randrange(count)] = Ask.DIE
    return Submission(
        number,
        way,
        asks,
        lane=random.choice(("urgent", "normal", "normal", "bulk")),
        key=f"chaos-{number}" if way is not Way.SINGLE and random.random() < 0.7 else None,
        window=f"{random.randint(2, 10)}s" if random.random() < 0.1 else "24h",
    )
