"""Work that is repeated whatever happened the time before."""

import pytest

from tasks.errors import MachineError
from tests.waiting import eventually
from workers.periodic import Periodic


@pytest.mark.parametrize("fault", [MachineError("away"), OSError("full"), KeyError("ours")])
def test_a_fault_does_not_end_the_repetition(fault: Exception) -> None:
    done: list[int] = []

    def work() -> None:
        done.append(1)
        if len(done) == 1:
            raise fault

    with Periodic("work", 0.001, work):
        eventually(lambda: len(done) > 3)


def test_nothing_is_done_after_the_end() -> None:
    done: list[int] = []
    with Periodic("work", 0.001, lambda: done.append(1)) as periodic:
        eventually(lambda: len(done) > 1)
    periodic._thread.join(5)
    count = len(done)
    assert not periodic._thread.is_alive()
    assert len(done) == count
