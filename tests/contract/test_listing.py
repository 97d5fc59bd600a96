"""Lists: whole, in one order, and of one tenant, whatever happens between two pages."""

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from tasks.backends import Backends
from tasks.errors import UserError
from tasks.file_sink import store_file
from tasks.files import delete_file
from tasks.jobs import delete_job
from tasks.listing import list_files, list_jobs
from tasks.submission import JobRequest, create_job
from tasks.tables import File, Job, JobKind, JobStatus
from tests.samples import ENDPOINT, change_job, good_input, submit

ODD_NAMES = ("50%.jsonl", "5000.jsonl", "a_b.jsonl", "aXb.jsonl", "a\\b.jsonl", "a/b.jsonl", "Ab'\"é.jsonl")


def created(backends: Backends, count: int, **request: str) -> list[str]:
    """Jobs of one input; their ids."""
    tenant = request.pop("tenant", "local")
    file = store_file(backends, [good_input(1)], filename="in.jsonl", tenant=tenant)
    asked = JobRequest(endpoint=ENDPOINT, input_file_id=file.id, tenant=tenant, **request)  # type: ignore[arg-type]
    return [create_job(backends, asked).id for _ in range(count)]


def named(backends: Backends, filename: str) -> str:
    """A job whose input has this name; its id."""
    file = store_file(backends, [good_input(1)], filename=filename)
    return create_job(backends, JobRequest(endpoint=ENDPOINT, input_file_id=file.id)).id


def pages(backends: Backends, limit: int) -> Iterator[list[str]]:
    """All pages of the list of jobs, each asked for after the last job of the one before."""
    after = None
    has_more = True
    while has_more:
        page = list_jobs(backends.database, "local", after=after, limit=limit)
        yield [job.id for job in page.items]
        after, has_more = page.items[-1].id, page.has_more


def found(backends: Backends, **filters: object) -> set[str]:
    return {job.id for job in list_jobs(backends.database, "local", **filters).items}  # type: ignore[arg-type]


def test_jobs_of_one_moment_come_page_by_page_while_others_arrive_and_go(backends: Backends) -> None:
    there = created(backends, 25)
    for job_id in there:
        change_job(backends, job_id, created_ms=1_000, status=JobStatus.FAILED)
    listed: list[str] = []
    for page in pages(backends, 7):
        listed += page
        created(backends, 1)
        # The very job that the next page is asked after.
        delete_job(backends.database, page[-1], "local")
    assert listed == sorted(there, reverse=True)


def test_a_page_that_ends_with_the_last_job_says_so(sqlite_backends: Backends) -> None:
    created(sqlite_backends, 4)
    assert [len(page) for page in pages(sqlite_backends, 2)] == [2, 2]


def test_a_place_in_the_list_is_one_of_the_tenants_own(sqlite_backends: Backends) -> None:
    (foreign,) = created(sqlite_backends, 1, tenant="other")
    job = created(sqlite_backends, 1)[0]
    for after in (foreign, "batch_none", "", "'", f"{job} "):
        for ask in (list_jobs, list_files):
            with pytest.raises(UserError) as refused:
                ask(sqlite_backends.database, "local", after=after)
            assert refused.value.param == "after"


def test_only_what_a_tenant_can_see_is_listed(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    shown, gone, single = created(backends, 3)
    created(backends, 1, tenant="other")
    change_job(backends, gone, deleted_ms=1)
    change_job(backends, single, kind=JobKind.SINGLE)
    assert found(backends) == {shown}


def test_filters_are_all_of_them_in_force(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    mine = created(backends, 2, model="sim")
    other = created(backends, 1, model="other")
    change_job(backends, mine[0], status=JobStatus.FAILED)
    change_job(backends, other[0], status=JobStatus.FAILED, kind=JobKind.RERUN)
    assert found(backends, statuses=[JobStatus.FAILED]) == {mine[0], other[0]}
    assert found(backends, statuses=[JobStatus.FAILED, JobStatus.VALIDATING]) == {*mine, *other}
    assert found(backends, model="sim") == set(mine)
    assert found(backends, kinds=[JobKind.RERUN]) == set(other)
    assert found(backends, statuses=[JobStatus.FAILED], model="sim") == {mine[0]}
    assert found(backends, model="sim", search=other[0]) == set()


def test_a_search_means_its_characters(backends: Backends) -> None:
    jobs = {name: named(backends, name) for name in ODD_NAMES}

    def names(part: str) -> set[str]:
        return {name for name, job_id in jobs.items() if job_id in found(backends, search=part)}

    assert names("0%") == {"50%.jsonl"}
    assert names("%") == {"50%.jsonl"}
    assert names("a_b") == {"a_b.jsonl"}
    assert names("a\\b") == {"a\\b.jsonl"}
    assert names("a/b") == {"a/b.jsonl"}
    assert names("AB'\"é") == {"Ab'\"é.jsonl"}
    assert names(".JSONL") == set(ODD_NAMES)
    assert names("nowhere") == set()
    wanted = jobs["50%.jsonl"]
    assert found(backends, search=wanted[6:-2].upper()) == {wanted}


def test_files_are_listed_by_age_in_either_direction(backends: Backends) -> None:
    ids = [store_file(backends, [b"x"], filename="f", purpose=purpose).id for purpose in ("batch", "vision")]
    ids += [store_file(backends, [b"x"], filename="f").id for _ in range(5)]
    with backends.database.write() as session:
        for place, file_id in enumerate(ids):
            # Two of each moment.
            session.execute(update(File).where(File.id == file_id).values(created_ms=1_000 + place // 2))
    oldest_first = sorted(ids, key=lambda file_id: (ids.index(file_id) // 2, file_id))

    def listed(*, newest_first: bool) -> list[str]:
        after, files = None, []
        while True:
            page = list_files(backends.database, "local", after=after, limit=3, newest_first=newest_first)
            files += [file.id for file in page.items]
            if not page.has_more:
                return files
            after = files[-1]

    assert listed(newest_first=False) == oldest_first
    assert listed(newest_first=True) == oldest_first[::-1]
    assert [file.id for file in list_files(backends.database, "local", purpose="vision").items] == [ids[1]]


def test_files_that_are_deleted_or_past_their_date_are_not_listed(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    kept, deleted, expired = (store_file(backends, [b"x"], filename="f").id for _ in range(3))
    store_file(backends, [b"x"], filename="f", tenant="other")
    delete_file(backends, deleted, "local")
    with backends.database.write() as session:
        session.execute(update(File).where(File.id == expired).values(expires_ms=1))
    assert [file.id for file in list_files(backends.database, "local").items] == [kept]
    # A client may delete what it lists, page by page.
    assert {file.id for file in list_files(backends.database, "local", after=deleted).items} <= {kept}


def test_a_job_whose_input_is_gone_is_still_found_by_its_name(sqlite_backends: Backends) -> None:
    job_id = submit(sqlite_backends, good_input(1))
    with sqlite_backends.database.read() as session:
        file_id = session.get_one(Job, job_id).input_file_id
    assert file_id is not None
    delete_file(sqlite_backends, file_id, "local")
    assert found(sqlite_backends, search="in.js") == {job_id}
