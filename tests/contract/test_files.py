"""Files on their way into storage and to their jobs: whole and recorded, or not there at all."""

from pathlib import Path

import pytest
from sqlalchemy import select, update

from tasks import file_sink
from tasks.backends import Backends
from tasks.errors import NotFound
from tasks.file_sink import FileSink, store_file
from tasks.files import open_content
from tasks.submission import JobRequest, create_job, input_file
from tasks.tables import File
from tests.samples import ENDPOINT, good_input


def test_a_file_that_cannot_be_recorded_is_not_kept(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(file_sink, "audit", fails)
    sink = FileSink(backends, tenant="local")
    sink.write(b"x")
    with pytest.raises(ConnectionError):
        sink.finish(filename="f")
    # What received it gives up the sink too, whatever went wrong.
    sink.abandon()
    assert not [path for path in (tmp_path / "storage").rglob("*") if path.is_file()]


def test_a_sink_that_is_given_up_after_its_end_keeps_its_file(sqlite_backends: Backends) -> None:
    sink = FileSink(sqlite_backends, tenant="local")
    sink.write(b"whole")
    file = sink.finish(filename="f")
    sink.abandon()
    assert b"".join(open_content(sqlite_backends, file.id, "local").blocks) == b"whole"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_input_is_not_deleted_between_the_check_and_the_job(backends: Backends) -> None:
    file = store_file(backends, [good_input(1)], filename="in.jsonl")
    request = JobRequest(endpoint=ENDPOINT, input_file_id=file.id)
    free = select(File.id).where(File.id == file.id).with_for_update(skip_locked=True)
    with backends.database.write() as session:
        assert input_file(session, request).id == file.id
        with backends.database.write() as other:
            assert other.scalars(free).all() == []
            # Other jobs of the same input do not wait.
            assert input_file(other, request).id == file.id
    with backends.database.write() as session:
        assert session.scalars(free).all() == [file.id]


@pytest.mark.parametrize("how", ["deleted_ms", "expires_ms"])
def test_a_file_that_is_gone_is_no_input(sqlite_backends: Backends, how: str) -> None:
    file = store_file(sqlite_backends, [good_input(1)], filename="in.jsonl")
    request = JobRequest(endpoint=ENDPOINT, input_file_id=file.id)
    create_job(sqlite_backends, request)
    with sqlite_backends.database.write() as session:
        session.execute(update(File).where(File.id == file.id).values({how: 1}))
    with pytest.raises(NotFound) as refused:
        create_job(sqlite_backends, request)
    assert refused.value.param == "input_file_id"
