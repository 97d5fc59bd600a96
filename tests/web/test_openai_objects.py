"""Our objects against the official client's own types: the same keys, no other values."""

import json
from io import BytesIO
from typing import Any

import pytest
from flask.testing import FlaskClient
from openai.types import Batch, FileDeleted, FileObject, Model, Upload
from openai.types.uploads import UploadPart
from pydantic import BaseModel

from tasks.backends import Backends
from tasks.chunks import record_results
from tasks.jobs import cancel_job
from tasks.tables import JobStatus
from tests.samples import answer, change_job, leased, started_job, submit
from tests.web.conftest import Auth

OURS = {"Batch": {"priority"}}
NOT_HERE = {"Model": {"shutdown_date"}}
"""Fields of the client's types that no deployment of ours can have."""


def hold_against(type_: type[BaseModel], shown: dict[str, Any]) -> None:
    """The same keys as the type has, at every depth, and values that it takes without conversion."""
    name = type_.__name__
    assert set(shown) == set(type_.model_fields) - NOT_HERE.get(name, set()) | OURS.get(name, set())
    _have_only_known_fields(type_.model_validate_json(json.dumps(shown), strict=True))


def _have_only_known_fields(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _have_only_known_fields(item)
    elif isinstance(value, BaseModel):
        name = type(value).__name__
        assert set(value.model_extra or {}) == OURS.get(name, set())
        assert value.model_fields_set >= set(type(value).model_fields) - NOT_HERE.get(name, set())
        for part in dict(value).values():
            _have_only_known_fields(part)


@pytest.mark.parametrize("status", list(JobStatus))
def test_a_batch_in_every_state_is_the_clients_batch(
    status: JobStatus, http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = started_job(sqlite_backends, 2)
    lease = leased(sqlite_backends, job_id)
    record_results(
        sqlite_backends.database,
        lease,
        [answer(0), answer(1, status_code=None, error_code="batch_expired")],
        worker="w",
        lease_s=30,
        finish=True,
    )
    errors = [{"code": "invalid_request", "message": "no", "line": 3, "param": None}]
    change_job(sqlite_backends, job_id, status=status, errors=errors if status == "failed" else None)
    shown = http.get(f"/v1/batches/{job_id}", headers=auth()).get_json()
    hold_against(Batch, shown)
    assert shown["status"] == status
    assert shown["errors"] == ({"object": "list", "data": errors} if status == "failed" else None)


def test_a_batch_that_begins_and_one_that_is_cancelled_have_all_their_fields(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    job_id = submit(sqlite_backends, b"")
    headers = auth()
    hold_against(Batch, http.get(f"/v1/batches/{job_id}", headers=headers).get_json())
    cancel_job(sqlite_backends.database, job_id)
    shown = http.get(f"/v1/batches/{job_id}", headers=headers).get_json()
    hold_against(Batch, shown)
    assert isinstance(shown["cancelling_at"], int)


def test_files_models_and_uploads_are_the_clients(http: FlaskClient, auth: Auth) -> None:
    headers = auth()
    file = http.post(
        "/v1/files",
        headers=headers,
        data={"purpose": "batch", "file": (BytesIO(b"x"), "in.jsonl")},
    ).get_json()
    hold_against(FileObject, file)
    listed = http.get("/v1/files", headers=headers).get_json()
    assert listed == {
        "object": "list",
        "data": [file],
        "first_id": file["id"],
        "last_id": file["id"],
        "has_more": False,
    }
    hold_against(FileDeleted, http.delete(f"/v1/files/{file['id']}", headers=headers).get_json())
    for model in http.get("/v1/models", headers=headers).get_json()["data"]:
        hold_against(Model, model)
    asked = {"filename": "in.jsonl", "purpose": "batch", "bytes": 1, "mime_type": "application/jsonl"}
    upload = http.post("/v1/uploads", headers=headers, json=asked).get_json()
    hold_against(Upload, upload)
    part = http.post(
        f"/v1/uploads/{upload['id']}/parts",
        headers=headers,
        data={"data": (BytesIO(b"x"), "part")},
    ).get_json()
    hold_against(UploadPart, part)
    done = http.post(
        f"/v1/uploads/{upload['id']}/complete", headers=headers, json={"part_ids": [part["id"]]}
    ).get_json()
    hold_against(Upload, done)
    hold_against(FileObject, done["file"])


def test_an_empty_list_has_no_first_and_no_last(http: FlaskClient, auth: Auth) -> None:
    nothing: dict[str, Any] = {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    assert http.get("/v1/batches", headers=auth()).get_json() == nothing
    assert http.get("/v1/files", headers=auth()).get_json() == nothing
