"""Files that come in parts: joined in the order asked for, checked, and nothing left behind."""

import hashlib
from typing import Any

import pytest
from sqlalchemy import select, update

from tasks.backends import Backends
from tasks.errors import Conflict, NotFound, UserError
from tasks.files import open_content
from tasks.storage import StoredObjectMissing
from tasks.tables import File, Upload, UploadPart, UploadStatus
from tasks.uploads import cancel_upload, complete_upload, create_upload, get_upload, open_part, purge_uploads
from tests.samples import with_settings

CONTENT = (b"first,", b"second,", b"third")
SIZE = len(b"".join(CONTENT))


def begun(backends: Backends, size_bytes: int = SIZE, **more: Any) -> str:
    return create_upload(
        backends, "local", filename="in.jsonl", purpose="batch", size_bytes=size_bytes, **more
    ).id


def add_part(backends: Backends, upload_id: str, content: bytes) -> UploadPart:
    sink = open_part(backends, upload_id, "local")
    sink.write(content)
    return sink.finish()


def add_parts(backends: Backends, upload_id: str) -> list[UploadPart]:
    return [add_part(backends, upload_id, content) for content in CONTENT]


def let_time_run_out(backends: Backends, upload_id: str) -> None:
    with backends.database.write() as session:
        session.execute(update(Upload).where(Upload.id == upload_id).values(expires_ms=1))


def files(backends: Backends) -> list[File]:
    with backends.database.read() as session:
        return list(session.scalars(select(File)))


def assert_freed(backends: Backends, parts: list[UploadPart]) -> None:
    with backends.database.read() as session:
        assert session.scalars(select(UploadPart)).all() == []
    for part in parts:
        with pytest.raises(StoredObjectMissing):
            backends.storage.size(part.storage_key)


def test_parts_become_one_file_in_the_order_that_completion_names(backends: Backends) -> None:
    upload_id = begun(backends, file_expires_s=7_200)
    parts = add_parts(backends, upload_id)
    order = [parts[2], parts[0], parts[1]]
    whole = b"third" + b"first," + b"second,"

    upload, file = complete_upload(
        backends,
        upload_id,
        "local",
        [part.id for part in order],
        hashlib.md5(whole, usedforsecurity=False).hexdigest(),
    )

    assert upload.status == UploadStatus.COMPLETED
    assert (file.filename, file.purpose, file.bytes) == ("in.jsonl", "batch", SIZE)
    assert file.expires_ms == file.created_ms + 7_200_000
    assert b"".join(open_content(backends, file.id, "local").blocks) == whole
    assert_freed(backends, parts)
    # A client that did not hear the answer asks again.
    again, same = complete_upload(backends, upload_id, "local", [])
    assert (again.id, same.id) == (upload_id, file.id)
    with pytest.raises(Conflict, match="completed"):
        open_part(backends, upload_id, "local")
    with pytest.raises(Conflict, match="completed"):
        cancel_upload(backends, upload_id, "local")


def test_a_wrong_completion_says_why_and_can_be_mended(sqlite_backends: Backends) -> None:
    backends = sqlite_backends
    upload_id = begun(backends)
    first, second, third = (part.id for part in add_parts(backends, upload_id))

    for part_ids, md5, param, message in (
        ([first, second], None, "part_ids", "13 bytes together; 18 were announced"),
        ([first, second, second], None, "part_ids", "more than once"),
        ([first, "part_unknown"], None, "part_ids", "no part 'part_unknown'"),
        ([first, second, third], "0" * 32, "md5", "MD5"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            complete_upload(backends, upload_id, "local", part_ids, md5)
        assert refused.value.param == param
    assert files(backends) == []

    complete_upload(backends, upload_id, "local", [first, second, third])
    assert len(files(backends)) == 1


def test_a_cancelled_upload_is_freed_and_takes_nothing_more(backends: Backends) -> None:
    upload_id = begun(backends)
    parts = add_parts(backends, upload_id)
    late = open_part(backends, upload_id, "local")
    late.write(b"late")

    assert cancel_upload(backends, upload_id, "local").status == UploadStatus.CANCELLED
    assert cancel_upload(backends, upload_id, "local").status == UploadStatus.CANCELLED

    with pytest.raises(Conflict, match="cancelled"):
        late.finish()
    with pytest.raises(Conflict, match="cancelled"):
        complete_upload(backends, upload_id, "local", [part.id for part in parts])
    assert_freed(backends, parts)
    with pytest.raises(StoredObjectMissing):
        backends.storage.size(late.storage_key)


def test_an_upload_that_nobody_completes_expires_and_is_freed(backends: Backends) -> None:
    upload_id = begun(backends)
    parts = add_parts(backends, upload_id)
    assert purge_uploads(backends) == 0
    let_time_run_out(backends, upload_id)

    # Told at once, and written down by the next pass.
    assert get_upload(backends.database, upload_id, "local").status == UploadStatus.EXPIRED
    with pytest.raises(Conflict, match="expired"):
        complete_upload(backends, upload_id, "local", [part.id for part in parts])
    assert purge_uploads(backends) == 1
    assert purge_uploads(backends) == 0
    assert get_upload(backends.database, upload_id, "local").status == UploadStatus.EXPIRED
    assert_freed(backends, parts)


def test_the_announced_size_and_the_owner_are_checked_first(sqlite_backends: Backends) -> None:
    small = with_settings(sqlite_backends, max_file_bytes=10)
    with pytest.raises(UserError, match="larger than 10 bytes") as refused:
        begun(small, 11)
    assert (refused.value.code, refused.value.param) == ("file_too_large", "bytes")

    upload_id = begun(small, 10)
    with pytest.raises(NotFound):
        get_upload(small.database, upload_id, "stranger")
    with pytest.raises(NotFound):
        open_part(small, upload_id, "stranger")
