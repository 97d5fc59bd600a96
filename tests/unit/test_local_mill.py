"""When a run gives up on its engine."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.settings import load_settings
from tests.waiting import eventually
from workers.child import Child
from workers.data_folder import DataFolder
from workers.local_mill import MOST_RESTARTS, EngineKeepsFailing, LocalMill
from workers.part import Part


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[LocalMill]:
    """A mill with an engine worker that says something and dies at once."""
    mill = LocalMill(load_settings(data_dir=tmp_path), DataFolder(tmp_path), {}, lambda _: None)
    child = Child("engine", [sys.executable, "-c", "raise SystemExit('no more')"], tmp_path / "log")
    mill.parts["engine"] = Part("engine worker", lambda: child, child.start)
    mill.parts["engine"].start(0.0)
    yield mill
    child.stop(0)


def die(mill: LocalMill, done: int) -> None:
    """One more death after `done` results, told to the mill; then the next engine worker is started."""
    engine = mill.parts["engine"]
    eventually(lambda: not engine.is_running)
    mill.keep_running(done)
    # As if it had run well for a minute, like an engine that loads for long and then dies.
    engine.forgive()
    engine.tend(math.inf)


def test_a_run_gives_up_on_an_engine_that_dies_without_progress_however_slowly(mill: LocalMill) -> None:
    for _ in range(MOST_RESTARTS):
        die(mill, done=0)
    with pytest.raises(EngineKeepsFailing, match="no more"):
        die(mill, done=0)


def test_a_run_goes_on_with_an_engine_that_gets_something_done_between_its_deaths(mill: LocalMill) -> None:
    for done in range(3 * MOST_RESTARTS):
        die(mill, done)
