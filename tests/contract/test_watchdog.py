"""A worker that takes nothing although it could ends itself; one that works, or cannot, does not."""

import time

import pytest
from celery import Celery
from celery.worker import state as celery_state

from tasks.messages import BrokerAway, Message, send
from tests.waiting import eventually
from workers import watchdog
from workers.watchdog import EXIT_STUCK, Watchdog

QUEUE = "watched"


@pytest.fixture(autouse=True)
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses with which the process would have been ended; short times."""
    seen: list[int] = []
    monkeypatch.setattr(watchdog, "CHECK_S", 0.02)
    monkeypatch.setattr(watchdog, "STUCK_S", 0.1)
    monkeypatch.setattr(watchdog, "LEAVE_S", 0.1)
    monkeypatch.setattr("os._exit", seen.append)
    monkeypatch.setattr(celery_state, "should_stop", None)
    return seen


def wait(app: Celery) -> None:
    assert send(app, [Message("nobody.takes.it", (1,), QUEUE, "one")])


def test_a_worker_that_leaves_messages_lying_leaves_and_is_ended_if_it_does_not(
    celery_app: Celery, exits: list[int]
) -> None:
    wait(celery_app)
    with Watchdog(celery_app, [QUEUE], lambda: True):
        eventually(lambda: celery_state.should_stop == EXIT_STUCK, "it is asked to leave")
        eventually(lambda: EXIT_STUCK in exits, "it is ended")


def test_a_worker_that_leaves_when_asked_is_not_ended(
    celery_app: Celery, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LEAVE_S", 5.0)
    wait(celery_app)
    with Watchdog(celery_app, [QUEUE], lambda: True) as watched:
        eventually(lambda: celery_state.should_stop == EXIT_STUCK, "it is asked to leave")
    watched._thread.join(1)
    assert exits == []


@pytest.mark.parametrize("why", ["no messages", "no room", "it takes some"])
def test_a_worker_with_a_reason_is_left_alone(
    celery_app: Celery, exits: list[int], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why != "no messages":
        wait(celery_app)
    looked: list[float] = []

    def may_take() -> bool:
        looked.append(time.monotonic())
        return why != "no room"

    if why == "it takes some":

        class Growing(dict[str, int]):
            def values(self) -> list[int]:  # type: ignore[override]
                looked.append(time.monotonic())
                return [len(looked)]

        monkeypatch.setattr(celery_state, "total_count", Growing())
    with Watchdog(celery_app, [QUEUE], may_take):
        eventually(lambda: len(looked) > 20, "many looks")
    assert (celery_state.should_stop, exits) == (None, [])


def test_a_broker_that_does_not_answer_is_no_reason_to_leave(
    celery_app: Celery, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def away(_: Celery, queue: str) -> int:
        looked.append(queue)
        raise BrokerAway("away")

    monkeypatch.setattr(watchdog, "waiting_messages", away)
    with Watchdog(celery_app, [QUEUE], lambda: True):
        eventually(lambda: len(looked) > 20, "many looks")
    assert (celery_state.should_stop, exits) == (None, [])
