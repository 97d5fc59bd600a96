"""The description of the APIs is true: whatever is sent, the answer is one that it declares."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from flask.testing import FlaskClient
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from config.settings import load_settings
from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.file_sink import store_file
from tasks.keys import create_key
from tasks.tables import JobStatus, Role
from tests.conftest import MODELS, forget_outside_settings
from tests.samples import answer, change_job, good_input, leased, started_job
from web.api import events
from web.app import create_app

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

EXAMPLES = hypothesis.settings(
    max_examples=8,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


class Site:
    """The application with something in it, its description, and a key."""

    def __init__(self, backends: Backends, redis_url: str) -> None:
        values = {"redis_url": SecretStr(redis_url), "sync_timeout_s": 0.01}
        self.app = create_app(backends.settings.model_copy(update=values))
        key = create_key(backends.database, tenant="local", name="test", role=Role.ADMIN)
        self.headers = {"Authorization": f"Bearer {key.secret}"}
        self.schema: Any = schemathesis.openapi.from_wsgi("/openapi/openapi.json", self.app)
        self._ids = {
            "job_id": [_ended_job(backends), started_job(backends, 2)],
            "file_id": [store_file(backends, [good_input(2)], filename="in.jsonl").id],
            "model_id": ["sim"],
        }
        self._ids["batch_id"] = self._ids["job_id"]
        self._ids["input_file_id"] = self._ids["file_id"]
        self._ids |= {"model": ["sim"], "endpoint": ["/v1/chat/completions"], "purpose": ["batch"]}
        self._ids |= {"template": ["{{ prompt }}"], "window": ["2h"], "completion_window": ["24h"]}

    def make_real(self, case: Any, number: int) -> None:
        """Put names and ids that there are into a call, so that it gets further than being unknown."""
        if number and isinstance(case.path_parameters, dict):
            case.path_parameters = self._with_real(case.path_parameters, number)
        if number > 1 and isinstance(case.body, dict):
            case.body = self._with_real(case.body, number)

    def _with_real(self, given: dict[str, Any], number: int) -> dict[str, Any]:
        found = {name: self._ids[name] for name in given if name in self._ids}
        return {**given, **{name: ids[number % len(ids)] for name, ids in found.items()}}


def _ended_job(backends: Backends) -> str:
    job_id = started_job(backends, 3)
    outcomes = [
        answer(0),
        answer(1, status_code=400),
        answer(2, status_code=None, error_code="batch_expired"),
    ]
    lease = leased(backends, job_id)
    record_results(backends.database, lease, outcomes, worker="w", lease_s=30, finish=True)
    change_job(backends, job_id, status=JobStatus.EXPIRED)
    return job_id


@pytest.fixture(scope="module")
def site(sqlite_template: Path, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(sqlite_template, folder / "gristmill.db")
    with pytest.MonkeyPatch.context() as patch:
        forget_outside_settings(patch)
        # A stream of a job that runs would last as long as the job.
        patch.setattr(events, "LIFETIME_S", 0.0)
        settings = load_settings(data_dir=folder, models=MODELS, default_model="sim")
        backends = Backends.open(settings)
        made = Site(backends, redis_url)
        yield made
        made.app.extensions["backends"].database.close()
        backends.database.close()


def operations(schema: Any) -> Iterator[Any]:
    for result in schema.get_all_operations():
        yield result.ok()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_declared_and_none_is_a_crash(site: Site, mode: GenerationMode) -> None:
    failures: dict[str, BaseException] = {}
    tried = 0
    for operation in operations(site.schema):

        @EXAMPLES
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode), number=st.integers(0, 3))
        def check(case: Any, number: int) -> None:
            site.make_real(case, number)
            case.call_and_validate(headers=site.headers, checks=CHECKS)

        tried += 1
        try:
            check()
        except hypothesis.errors.Unsatisfiable:
            pass  # there is nothing wrong to send where everything is allowed
        except BaseExceptionGroup as group:
            failures[operation.label] = group.exceptions[0]
        except AssertionError as error:
            failures[operation.label] = error
    assert not failures, "\n\n".join(f"{label}: {error}" for label, error in failures.items())
    assert tried > 15


def test_the_page_that_shows_the_description_fetches_nothing_from_elsewhere(site: Site) -> None:
    client: FlaskClient = site.app.test_client()
    page = client.get("/openapi/scalar")
    assert page.status_code == 200
    assert "://" not in page.get_data(as_text=True)
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    script = client.get("/openapi/scalar/js/scalar.standalone.js")
    assert script.status_code == 200
    script.close()


def test_every_route_of_the_apis_is_described(site: Site) -> None:
    described = {
        (method.upper(), path) for path, item in site.app.api_doc["paths"].items() for method in item
    }
    rules = {
        (
            method,
            rule.rule.replace("<string:", "{").replace("<path:", "{").replace("<", "{").replace(">", "}"),
        )
        for rule in site.app.url_map.iter_rules()
        if rule.rule.startswith(("/api/", "/v1/"))
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert rules == described


def test_the_description_is_openapi_3_1_with_a_key_for_every_operation(site: Site) -> None:
    document = site.app.api_doc
    assert document["openapi"] == "3.1.0"
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["security"] == [{"key": []}], f"{method} {path}"
            assert operation["summary"], f"{method} {path}"
