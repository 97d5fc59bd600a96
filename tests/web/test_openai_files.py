"""`/v1/files`: what is refused leaves nothing behind, and downloads say truly what they hold."""

from io import BytesIO
from typing import Any

import pytest
from flask.testing import FlaskClient
from flask_openapi import OpenAPI
from sqlalchemy import func, select

import tasks.files
from tasks.backends import Backends
from tasks.chunks import record_results, release_chunk
from tasks.finalise import settle
from tasks.jobs import cancel_job, get_job
from tasks.tables import File, Job, JobStatus
from tests.samples import answer, leased, started_job, with_settings
from tests.web.conftest import Auth

FORM = "multipart/form-data; boundary=b"


def part(name: str, value: str, filename: str | None = None) -> bytes:
    named = "" if filename is None else f'; filename="{filename}"'
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n{value}\r\n'.encode()


PURPOSE, FILE, END = part("purpose", "batch"), part("file", "x" * 50, "a.jsonl"), b"--b--\r\n"
ANCHOR = part("expires_after[anchor]", "created_at")


def seconds(value: str) -> bytes:
    return part("expires_after[seconds]", value)


def nothing_is_left(backends: Backends) -> bool:
    """Neither a record nor bytes, not even unfinished ones."""
    with backends.database.read() as session:
        records = session.execute(select(func.count()).select_from(File)).scalar_one()
    storage = backends.settings.data_dir / "storage"
    return records == 0 and not [path for path in storage.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (FILE + END, "purpose"),
        (FILE + part("purpose", "secrets") + END, "purpose"),
        # Results are never uploaded.
        (FILE + part("purpose", "batch_output") + END, "purpose"),
        (FILE + PURPOSE + PURPOSE + END, "purpose"),
        (PURPOSE + END, "file"),
        (PURPOSE + part("file", "not a file") + END, "file"),
        (FILE + PURPOSE + FILE + END, "file"),
        (FILE + PURPOSE + part("colour", "red") + END, "colour"),
        (FILE + PURPOSE + ANCHOR + END, "expires_after[seconds]"),
        (FILE + PURPOSE + seconds("7200") + END, "expires_after[anchor]"),
        (
            FILE + PURPOSE + part("expires_after[anchor]", "now") + seconds("7200") + END,
            "expires_after[anchor]",
        ),
        (FILE + PURPOSE + ANCHOR + seconds("3599") + END, "expires_after[seconds]"),
        (FILE + PURPOSE + ANCHOR + seconds("2592001") + END, "expires_after[seconds]"),
        (FILE + PURPOSE + ANCHOR + seconds("1e4") + END, "expires_after[seconds]"),
        (FILE + PURPOSE + ANCHOR + seconds("9" * 400) + END, "expires_after[seconds]"),
        (b"", "file"),
        # Cut off.
        (PURPOSE + FILE, None),
        (PURPOSE + FILE[:-20], None),
    ],
)
def test_a_refused_upload_names_its_fault_and_leaves_nothing(
    http: FlaskClient, auth: Auth, sqlite_backends: Backends, body: bytes, param: str | None
) -> None:
    refusal = http.post("/v1/files", headers=auth(), data=body, content_type=FORM)
    assert refusal.status_code == 400, refusal.text
    assert refusal.get_json()["error"]["param"] == param
    assert nothing_is_left(sqlite_backends)


@pytest.mark.parametrize("lifetime", [3_600, 2_592_000])
def test_the_ends_of_the_range_are_lifetimes(http: FlaskClient, auth: Auth, lifetime: int) -> None:
    body = FILE + PURPOSE + ANCHOR + seconds(str(lifetime)) + END
    file = http.post("/v1/files", headers=auth(), data=body, content_type=FORM).get_json()
    assert file["expires_at"] == file["created_at"] + lifetime


class Unread(BytesIO):
    """A body that nobody may ask for."""

    def read(self, *_: object) -> bytes:
        raise AssertionError("the body was read")

    readinto = readline = read  # type: ignore[assignment]


def test_what_says_to_be_too_long_is_refused_unread(
    site: OpenAPI, http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    refusal = http.post(
        "/v1/files",
        headers=auth(),
        content_type=FORM,
        input_stream=Unread(),
        environ_overrides={"CONTENT_LENGTH": str(sqlite_backends.settings.max_file_bytes * 2)},
    )
    assert (refusal.status_code, refusal.get_json()["error"]["code"]) == (413, "file_too_large")
    assert nothing_is_left(sqlite_backends)


def test_a_file_of_the_limit_is_taken_and_one_byte_more_is_not(
    site: OpenAPI, http: FlaskClient, auth: Auth, sqlite_backends: Backends
) -> None:
    site.extensions["backends"] = with_settings(site.extensions["backends"], max_file_bytes=50)
    longer = PURPOSE + part("file", "x" * 51, "a.jsonl") + END
    refusal = http.post("/v1/files", headers=auth(), data=longer, content_type=FORM)
    assert (refusal.status_code, refusal.get_json()["error"]["code"]) == (413, "file_too_large")
    assert "max_file_bytes" in refusal.get_json()["error"]["message"]
    assert nothing_is_left(sqlite_backends)
    taken = http.post("/v1/files", headers=auth(), data=PURPOSE + FILE + END, content_type=FORM)
    assert taken.get_json()["bytes"] == 50


def test_an_upload_that_is_no_form_is_415(http: FlaskClient, auth: Auth) -> None:
    refusal = http.post("/v1/files", headers=auth(), json={"purpose": "batch"})
    assert (refusal.status_code, refusal.get_json()["error"]["param"]) == (415, "Content-Type")


def test_a_download_is_saved_under_its_name_and_never_shown(http: FlaskClient, auth: Auth) -> None:
    headers = auth()
    body = PURPOSE + part("file", "<script>", 'ü "x".html') + END
    file = http.post("/v1/files", headers=headers, data=body, content_type=FORM).get_json()
    answered = http.get(f"/v1/files/{file['id']}/content", headers=headers)
    assert answered.text == "<script>"
    disposition = answered.headers["Content-Disposition"]
    assert disposition.startswith("attachment; filename*=UTF-8''%C3%BC%20")
    assert answered.mimetype == "application/octet-stream"
    assert answered.headers["X-Content-Type-Options"] == "nosniff"
    assert answered.headers["X-Gristmill-Complete"] == "true"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_job_that_ends_during_a_download_is_never_half_a_file_called_whole(
    moment: str, http: FlaskClient, auth: Auth, sqlite_backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = sqlite_backends
    job_id = started_job(backends, 3)
    lease = leased(backends, job_id)
    record_results(
        backends.database, lease, [answer(0, status_code=422)], worker="w", lease_s=30, finish=False
    )
    release_chunk(backends.database, lease, attempts=lease.attempt)

    def end() -> None:
        """Two more lines for the error file."""
        if get_job(backends.database, job_id).status == JobStatus.IN_PROGRESS:
            cancel_job(backends.database, job_id)
            assert settle(backends, job_id) == JobStatus.CANCELLED

    def ending(*asked: Any) -> Job:
        if moment == "before":
            end()
        found = get_job(*asked)
        end()
        return found

    monkeypatch.setattr(tasks.files, "get_job", ending)
    answered = http.get(f"/v1/files/file-{job_id[6:]}-errors/content", headers=auth())
    assert answered.status_code == 200
    assert answered.text.count("\n") == 3
    if answered.headers["X-Gristmill-Complete"] == "true":
        assert answered.content_length == len(answered.data)
    else:
        assert answered.content_length is None
