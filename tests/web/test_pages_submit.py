"""The submit page: what a form becomes, and what becomes of its file."""

import io
import re

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tasks.backends import Backends
from tasks.intake import run_intake
from tasks.jobs import get_job
from tasks.listing import list_files, list_jobs
from tasks.rows import RowsSpec
from tasks.tables import File, Job, JobStatus
from tests.samples import good_input
from tests.web.conftest import Browser, token_of


def send(
    client: FlaskClient, action: str = "submit", file: tuple[str, bytes] | None = None, **fields: str
) -> TestResponse:
    """The form of the submit page, as a browser sends it."""
    name, content = file or ("", b"")
    data = {**fields, "action": action, "csrf_token": token_of(client), "file": (io.BytesIO(content), name)}
    return client.post("/", data=data, content_type="multipart/form-data")


def kept_file(answer: TestResponse) -> str | None:
    """The file that the form in this answer names."""
    found = re.search(r'name="input_file_id" value="([^"]+)"', answer.text)
    return found[1] if found else None


def files_of(backends: Backends) -> list[File]:
    return list(list_files(backends.database, "local").items)


def the_job(backends: Backends) -> Job:
    """The only one there is."""
    (job,) = list_jobs(backends.database, "local").items
    return job


def test_pasted_prompts_become_a_job_of_their_lines(browser: Browser, sqlite_backends: Backends) -> None:
    answer = send(
        browser(), prompts="  one \r\n\r\n two\r\n", temperature="0.5", max_tokens="7", priority="bulk"
    )
    job = the_job(sqlite_backends)
    assert answer.headers["Location"] == f"/jobs/{job.id}"
    assert (job.model, job.lane, job.kind) == ("sim", "bulk", "rows")
    assert RowsSpec.from_options(job.options).body == {"temperature": 0.5, "max_tokens": 7}
    run_intake(sqlite_backends, job.id)
    assert get_job(sqlite_backends.database, job.id).total == 2


def test_a_preview_of_pasted_prompts_keeps_nothing(browser: Browser, sqlite_backends: Backends) -> None:
    client = browser()
    answer = send(client, "preview", prompts="one\ntwo", template="Say {{ prompt }}.")
    assert "Say one." in answer.text
    assert kept_file(answer) is None
    assert files_of(sqlite_backends) == []
    assert list_jobs(sqlite_backends.database, "local").items == []


def test_a_previewed_file_is_sent_once_and_then_belongs_to_the_job(
    browser: Browser, sqlite_backends: Backends
) -> None:
    client = browser()
    table = ("t.csv", b"text\nhello\n")
    answer = send(client, "preview", table, template="Say {{ text }}")
    assert "Say hello" in answer.text
    (file,) = files_of(sqlite_backends)
    assert file.expires_ms is not None
    assert kept_file(answer) == file.id
    assert send(client, template="Say {{ text }}", input_file_id=file.id).status_code == 302
    job = the_job(sqlite_backends)
    (file,) = files_of(sqlite_backends)
    assert (file.job_id, file.expires_ms) == (job.id, None)


def test_a_form_sent_twice_leaves_the_file_with_the_first_job(
    browser: Browser, sqlite_backends: Backends
) -> None:
    client = browser()
    file_id = kept_file(send(client, "preview", ("in.jsonl", good_input(2))))
    assert file_id
    assert send(client, input_file_id=file_id).status_code == 302
    first = the_job(sqlite_backends)
    assert send(client, input_file_id=file_id).status_code == 302
    jobs = list_jobs(sqlite_backends.database, "local").items
    assert len(jobs) == 2
    (file,) = files_of(sqlite_backends)
    assert file.job_id == first.id
    for job in jobs:
        run_intake(sqlite_backends, job.id)
        assert get_job(sqlite_backends.database, job.id).status == JobStatus.IN_PROGRESS


def test_a_fault_in_a_field_does_not_lose_the_file(browser: Browser, sqlite_backends: Backends) -> None:
    client = browser()
    answer = send(client, file=("t.csv", b"text\nhello\n"), template="{{ text", system="Be kind.")
    assert answer.status_code == 400
    assert "Be kind." in answer.text
    file_id = kept_file(answer)
    assert file_id
    assert "t.csv" in answer.text
    assert send(client, template="{{ text }}", input_file_id=file_id).status_code == 302


def test_pasted_prompts_can_be_sent_again_after_a_fault(browser: Browser, sqlite_backends: Backends) -> None:
    client = browser()
    answer = send(client, prompts="one", model="nobody-has-it")
    assert answer.status_code == 400
    assert "nobody-has-it" in answer.text
    assert kept_file(answer) is None
    assert send(client, prompts="one").status_code == 302
    assert len(files_of(sqlite_backends)) == 1


@pytest.mark.parametrize(
    ("fields", "file", "message"),
    [
        ({}, None, "Paste some prompts"),
        ({"prompts": " \n\n"}, None, "Paste some prompts"),
        ({"prompts": "one"}, ("t.csv", b"text\nx\n"), "prompts or a file, not both"),
        ({}, ("t.csv", b""), "The file is empty"),
        ({}, ("t.csv", b"text\nx\n"), "template"),
        ({"template": "{{ x }}"}, ("t.docx", b"x"), "Cannot tell the format"),
        ({"input_file_id": "file-gone"}, None, "no longer kept"),
        ({"input_file_id": "file-gone"}, ("t.csv", b""), "The file is empty"),
        ({"prompts": "one", "temperature": "warm"}, None, "&#39;temperature&#39; must be a number"),
        ({"prompts": "one", "temperature": "nan"}, None, "temperature"),
        ({"prompts": "one", "top_p": "inf"}, None, "top_p"),
        ({"prompts": "one", "max_tokens": "1.5"}, None, "&#39;max_tokens&#39; must be a number"),
        ({"prompts": "one", "max_tokens": "9" * 5000}, None, "max_tokens"),
        ({"prompts": "one", "json_schema": "{"}, None, "&#39;json_schema&#39; is not JSON"),
        ({"prompts": "one", "json_schema": "[" * 100_000}, None, "json_schema"),
        ({"prompts": "one", "json_schema": "[]"}, None, "json_schema"),
        ({"prompts": "one", "priority": "now"}, None, "priority"),
        ({"prompts": "one", "endpoint": "/v1/nowhere"}, None, "endpoint"),
        ({"prompts": "one", "template": "{{ prompt"}, None, "template"),
        ({"prompts": "one", "system": "a\x00b"}, None, "NUL"),
    ],
)
def test_what_cannot_run_is_refused_with_its_field_and_the_form_as_it_was(
    browser: Browser,
    sqlite_backends: Backends,
    fields: dict[str, str],
    file: tuple[str, bytes] | None,
    message: str,
) -> None:
    client = browser()
    for action in ("preview", "submit"):
        answer = send(client, action, file, **fields)
        assert answer.status_code == 400
        assert message in answer.text
        assert '<textarea id="prompts"' in answer.text
    assert list_jobs(sqlite_backends.database, "local").items == []


def test_the_file_of_another_tenant_cannot_be_used(browser: Browser, sqlite_backends: Backends) -> None:
    file_id = kept_file(send(browser(), "preview", ("in.jsonl", good_input(2))))
    assert file_id
    other = browser(tenant="other")
    assert "no longer kept" in send(other, input_file_id=file_id).text
    assert file_id not in other.get("/", query_string={"input_file_id": file_id}).text


def test_a_link_fills_in_the_form(browser: Browser) -> None:
    page = browser().get("/?template=Say+%7B%7B+text+%7D%7D&system=%3Cb%3E&priority=bulk").text
    assert "Say {{ text }}</textarea>" in page
    assert "&lt;b&gt;" in page
    assert "<option selected>bulk" in page
