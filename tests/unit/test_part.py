"""When a process that died is started again."""

import sys
import time
from pathlib import Path

from tests.waiting import eventually
from workers.child import Child
from workers.part import LONGEST_BACKOFF_S, WELL_S, Part


def ending_part(folder: Path, status: int, hopeless: frozenset[int] = frozenset()) -> Part:
    child = Child("short", [sys.executable, "-c", f"raise SystemExit({status})"], folder / "log")
    part = Part("short process", lambda: child, child.start, hopeless)
    part.start(0.0)
    eventually(lambda: not part.is_running)
    return part


def test_a_death_is_told_once_and_mended_when_its_time_has_come(tmp_path: Path) -> None:
    part = ending_part(tmp_path, 3)
    was_news, message, is_news = part.died, part.tend(10.0) or "", part.died
    assert (was_news, is_news) == (True, False)
    assert "short process ended with status 3; starting another in 1 s" in message
    assert str(tmp_path / "log") in message
    assert part.tend(10.9) is None
    assert not part.is_running
    assert part.tend(11.0) is None
    eventually(lambda: not part.is_running)
    assert "in 2 s" in (part.tend(12.0) or "")
    part.child().stop(0)


def test_what_ends_the_same_way_each_time_is_tried_seldom(tmp_path: Path) -> None:
    part = ending_part(tmp_path, 2, frozenset({2}))
    assert part.is_hopeless
    assert f"in {LONGEST_BACKOFF_S:.0f} s" in (part.tend(0.0) or "")


def test_a_process_that_runs_well_is_forgiven(tmp_path: Path) -> None:
    child = Child("long", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log")
    part = Part("long process", lambda: child, child.start)
    part.start(0.0)
    part.deaths = 5
    assert part.tend(WELL_S - 1) is None
    assert part.deaths == 5
    assert part.tend(WELL_S) is None
    assert part.deaths == 0
    part.child().stop(0)


def test_a_start_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    part = ending_part(tmp_path, 1)

    def refuse() -> None:
        raise TimeoutError("it does not answer")

    part.start_child = refuse
    now = time.monotonic()
    part.tend(now)
    assert "did not start: it does not answer" in (part.tend(now + 1) or "")
    assert "in 2 s" in (part.tend(now + 1) or "")
