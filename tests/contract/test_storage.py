"""Storage keeps its promises on a local folder and on an S3 server alike."""

import hashlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from config.settings import load_settings
from tasks import storage as storage_module
from tasks.storage import PART_BYTES, Storage, StoredObjectMissing, open_storage

S3_OPTIONS = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_region": "us-east-1",
}


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """The address of an S3 server with one bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{address}/sacks", method="PUT")).close()  # noqa: S310
    yield address
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """An empty storage of each kind."""
    if request.param == "folder":
        return Storage((tmp_path / "some folder é").as_uri())
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    endpoint = request.getfixturevalue("s3_server")
    return Storage(f"s3://sacks/{tmp_path.name}", {**S3_OPTIONS, "aws_endpoint": endpoint})


def test_a_stored_stream_comes_back_whole(storage: Storage) -> None:
    blocks = [b"one", b"", b"two" * 1000]
    content = b"".join(blocks)
    assert storage.put("files/a", iter(blocks)) == (len(content), hashlib.sha256(content).hexdigest())
    assert b"".join(storage.stream("files/a")) == content
    assert storage.size("files/a") == len(content)


def test_an_object_larger_than_a_part_comes_back_whole(storage: Storage) -> None:
    block = bytes(range(256)) * 4096
    blocks = [block] * (PART_BYTES * 2 // len(block)) + [b"end"]
    size, digest = storage.put("files/large", iter(blocks))
    received = hashlib.sha256()
    for piece in storage.stream("files/large"):
        assert len(piece) <= storage_module.READ_BYTES
        received.update(piece)
    assert (size, digest) == (PART_BYTES * 2 + 3, received.hexdigest())


def test_an_empty_object_is_an_object(storage: Storage) -> None:
    assert storage.put("files/empty", []) == (0, hashlib.sha256().hexdigest())
    assert list(storage.stream("files/empty")) == []


def test_a_range_is_read_exactly(storage: Storage) -> None:
    storage.put("files/a", [bytes(range(100))])
    assert storage.read_range("files/a", 10, 5) == bytes(range(10, 15))
    assert storage.read_range("files/a", 99, 1) == b"\x63"


def test_an_object_is_read_in_blocks(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "READ_BYTES", 7)
    storage.put("files/a", [b"x" * 20])
    assert [len(block) for block in storage.stream("files/a")] == [7, 7, 6]


def test_an_object_is_replaced_as_a_whole(storage: Storage) -> None:
    storage.put("files/a", [b"a longer first version"])
    storage.put("files/a", [b"second"])
    assert b"".join(storage.stream("files/a")) == b"second"


@pytest.mark.parametrize("size", [10, PART_BYTES + 10])
def test_a_writer_that_is_never_closed_leaves_nothing(storage: Storage, size: int, tmp_path: Path) -> None:
    writer = storage.writer("files/never")
    writer.write(b"x" * size)
    with pytest.raises(StoredObjectMissing):
        storage.size("files/never")
    del writer
    with pytest.raises(StoredObjectMissing):
        storage.size("files/never")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_stream_that_breaks_off_is_not_stored(storage: Storage) -> None:
    def breaking() -> Iterator[bytes]:
        yield b"first"
        raise ConnectionError("the client went away")

    with pytest.raises(ConnectionError):
        storage.put("files/broken", breaking())
    with pytest.raises(StoredObjectMissing):
        storage.size("files/broken")


def test_an_object_that_is_not_there_is_said_to_be_missing(storage: Storage) -> None:
    with pytest.raises(StoredObjectMissing, match="files/none"):
        storage.size("files/none")
    with pytest.raises(StoredObjectMissing, match="files/none"):
        storage.read_range("files/none", 0, 1)
    with pytest.raises(StoredObjectMissing, match="files/none"):
        list(storage.stream("files/none"))


def test_deleting_twice_is_fine(storage: Storage) -> None:
    storage.put("files/a", [b"a"])
    storage.delete("files/a")
    storage.delete("files/a")
    with pytest.raises(StoredObjectMissing):
        storage.size("files/a")


def test_settings_alone_lead_to_an_s3_server_without_tls(s3_server: str, tmp_path: Path) -> None:
    settings = load_settings(
        data_dir=tmp_path,
        storage_url=f"s3://sacks/{tmp_path.name}",
        storage_options={**S3_OPTIONS, "aws_endpoint": s3_server, "aws_allow_http": "true"},
    )
    storage = open_storage(settings)
    storage.put("files/a", [b"over plain HTTP"])
    assert b"".join(storage.stream("files/a")) == b"over plain HTTP"


def test_settings_without_storage_keep_files_in_the_data_folder(tmp_path: Path) -> None:
    storage = open_storage(load_settings(data_dir=tmp_path / "data"))
    storage.put("files/a", [b"here"])
    assert (tmp_path / "data" / "storage" / "files" / "a").read_bytes() == b"here"
