"""A mill that the tests of one file share."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.databases import POSTGRESQL, SQLITE, database_under_test
from tests.chaos.mill import Mill
from tests.chaos.one_client import OneClient
from tests.conftest import forget_outside_settings


@pytest.fixture(scope="module")
def changed_settings() -> dict[str, Any]:
    """Settings of the file's mill that differ from all others'."""
    return {}


@pytest.fixture(scope="module", params=[SQLITE, POSTGRESQL])
def _mill(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    changed_settings: dict[str, Any],
) -> Iterator[Mill]:
    folder = tmp_path_factory.mktemp("mill")
    with contextlib.ExitStack() as stack:
        forget_outside_settings(stack.enter_context(pytest.MonkeyPatch.context()))
        database = stack.enter_context(database_under_test(request.param, folder))
        mill = Mill(folder, database, **changed_settings)
        mill.start()
        yield mill
        assert mill.stop() == []


@pytest.fixture(scope="module")
def client(_mill: Mill) -> OneClient:
    """The one client of the file's mill."""
    return OneClient(_mill)


@pytest.fixture(autouse=True)
def _all_of_it_runs(request: pytest.FixtureRequest) -> None:
    """Each test of the shared mill begins with one that is whole."""
    if "client" in request.fixturenames:
        request.getfixturevalue("client").mill.wait_until_ready()
