"""The same submission sent twice is one job."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tasks.backends import Backends
from tasks.errors import Conflict
from tasks.file_sink import store_file
from tasks.jobs import delete_job
from tasks.listing import list_jobs
from tasks.submission import JobRequest, create_job
from tests.samples import ENDPOINT, change_job, good_input

AT_ONCE = 6


def request(backends: Backends, sha256: str = "a", tenant: str = "local") -> JobRequest:
    file = store_file(backends, [good_input(1)], filename="in.jsonl", tenant=tenant)
    return JobRequest(
        endpoint=ENDPOINT,
        input_file_id=file.id,
        tenant=tenant,
        idempotency_key="night",
        idempotency_sha256=sha256,
    )


def test_any_number_at_once_make_one_job(backends: Backends) -> None:
    asked = request(backends)
    begin = Barrier(AT_ONCE)

    def create() -> str:
        begin.wait()
        return create_job(backends, asked).id

    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = {future.result() for future in [pool.submit(create) for _ in range(AT_ONCE)]}
    assert len(made) == 1
    assert {job.id for job in list_jobs(backends.database, "local").items} == made


def test_the_key_belongs_to_one_submission_of_one_tenant(backends: Backends) -> None:
    first = create_job(backends, request(backends))
    with pytest.raises(Conflict) as reused:
        create_job(backends, request(backends, sha256="b"))
    assert reused.value.code == "idempotency_key_reused"
    assert create_job(backends, request(backends, tenant="other")).id != first.id


def test_a_deleted_job_gives_its_key_back(sqlite_backends: Backends) -> None:
    first = create_job(sqlite_backends, request(sqlite_backends))
    change_job(sqlite_backends, first.id, status="failed")
    delete_job(sqlite_backends.database, first.id, "local")
    assert create_job(sqlite_backends, request(sqlite_backends)).id != first.id
