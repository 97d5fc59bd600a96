"""Object storage: uploaded and planned files, on a local folder, S3 or anything else that obstore reaches."""

import hashlib
import io
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlparse

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from config.settings import Settings
from tasks.errors import MachineError
from tasks.faults import StorageFailed, StorageFull, is_full

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_BYTES = 2 << 20
"""Size of one read of a stream: worth a round trip, and small enough to stay flat."""

PART_BYTES = 8 << 20
"""Size of one part of a multipart upload; S3 allows 10,000 of at least 5 MiB."""

KEYS_IN_PAGE = 1_000

PARTS_UNDER_WAY = 2
"""Parts uploaded at a time; each is held in memory until it is through."""


_CLIENT_OPTIONS = frozenset({"allow_http", "connect_timeout", "timeout", "proxy_url", "root_certificate"})


_SIGNS_OF_FULL = ("os error 28", "os error 122", "os error 27")
"""No space left on device; disk quota exceeded; file too large."""


class Sink(Protocol):
    """Where a streamed object is written; nothing is visible before `close`."""

    def write(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


class StoredObjectMissing(MachineError):
    """Storage lacks an object that the database points at."""


class Storage:
    """Named objects of any size. Thread-safe."""

    def __init__(self, url: str, options: dict[str, str] | None = None) -> None:
        self.url = url
        self._store: ObjectStore
        self._folder: Path | None = None
        if url.startswith("file:"):
            self._folder = Path(unquote(urlparse(url).path))
            self._store = LocalStore(prefix=self._folder, mkdir=True)
        else:
            store_options, client_options = _split_options(options or {})
            # obstore's types list each option by name; ours come from the settings.
            self._store = from_url(url, client_options=client_options, **store_options)  # type: ignore[call-overload]

    def writer(self, key: str) -> Sink:
        """Write an object of unknown size; it appears whole when the writer is closed, or not at all."""
        with _faults_as_ours(key):
            return _Writer(
                key,
                obstore.open_writer(
                    self._store, key, buffer_size=PART_BYTES, max_concurrency=PARTS_UNDER_WAY
                ),
            )

    def put(self, key: str, blocks: Iterable[bytes]) -> tuple[int, str]:
        """Store a stream of blocks; returns its size in bytes and its SHA-256 in hexadecimal."""
        digest = hashlib.sha256()
        size = 0
        writer = self.writer(key)
        for block in blocks:
            digest.update(block)
            size += len(block)
            writer.write(block)
        writer.close()
        return size, digest.hexdigest()

    def stream(self, key: str) -> Iterator[bytes]:
        """The object's bytes in blocks of `READ_BYTES`.

        Ranges rather than one long answer: on a local disk five times as fast, and a connection that
        breaks costs one block.

        Raises:
            StoredObjectMissing: there is no such object.
        """
        size = self.size(key)
        for offset in range(0, size, READ_BYTES):
            yield self.read_range(key, offset, min(READ_BYTES, size - offset))

    def reader(self, key: str) -> io.RawIOBase:
        """The object as a file that can be read at any place, for formats that need to.

        Raises:
            StoredObjectMissing: there is no such object.
        """
        return _StoredFile(self, key)

    def size(self, key: str) -> int:
        """The object's size in bytes.

        Raises:
            StoredObjectMissing: there is no such object.
        """
        with _faults_as_ours(key):
            return obstore.head(self._store, key)["size"]

    def read_range(self, key: str, offset: int, length: int) -> bytes:
        """One range of an object, in one request.

        Raises:
            StoredObjectMissing: there is no such object.
        """
        with _faults_as_ours(key):
            return bytes(obstore.get_range(self._store, key, start=offset, length=length))

    def objects(self, prefix: str, older_than_s: float) -> Iterator[dict[str, int]]:
        """Pages of objects under a prefix that have not changed for so long: key to size in bytes."""
        with _faults_as_ours(prefix):
            for page in obstore.list(self._store, prefix=prefix, chunk_size=KEYS_IN_PAGE):
                before = datetime.now(UTC) - timedelta(seconds=older_than_s)
                yield {each["path"]: each["size"] for each in page if each["last_modified"] < before}

    def drop_unfinished(self, older_than_s: float) -> int:
        """Remove what writers that were killed left behind in a local folder; returns how many.

        Object stores do it themselves, by a rule for incomplete multipart uploads.
        """
        if self._folder is None:
            return 0
        before = time.time() - older_than_s
        dropped = 0
        # obstore writes to `name#1` and renames at the end.
        for path in self._folder.rglob("*#[0-9]*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    dropped += 1
        return dropped

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is fine."""
        with suppress(StoredObjectMissing), _faults_as_ours(key):
            obstore.delete(self._store, key)


class _Writer:
    """obstore's writer, with our errors."""

    def __init__(self, key: str, writer: Sink) -> None:
        self._key = key
        self._writer = writer

    def write(self, data: bytes, /) -> int:
        with _faults_as_ours(self._key):
            return self._writer.write(data)

    def close(self) -> None:
        with _faults_as_ours(self._key):
            self._writer.close()


class _StoredFile(io.RawIOBase):
    """An object of which each read is one range; obstore's own file is none to Python's libraries."""

    def __init__(self, storage: Storage, key: str) -> None:
        self._storage = storage
        self._key = key
        self._size = storage.size(key)
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        into = memoryview(buffer)
        length = min(len(into), self._size - self._place)
        if length <= 0:
            return 0
        into[:length] = self._storage.read_range(self._key, self._place, length)
        self._place += length
        return length


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str | bool] | None]:
    """Options of the store, and those of its HTTP connections, which obstore wants apart."""
    store: dict[str, str] = {}
    client: dict[str, str | bool] = {}
    for name, value in options.items():
        plain = name.removeprefix("aws_")
        if plain not in _CLIENT_OPTIONS:
            store[name] = value
        elif plain == "allow_http":
            client[plain] = value.lower() in ("1", "true", "yes")
        else:
            client[plain] = value
    # An empty set is not the same as none: it would hide what the environment says.
    return store, client or None


@contextmanager
def _faults_as_ours(key: str) -> Iterator[None]:
    """Turn obstore's ways of saying that something is missing, or does not work now, into our errors."""
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise StoredObjectMissing(f"{key} is not in storage") from error
    except (BaseError, OSError) as error:
        # obstore has no error of its own for a full disk, and the system's is in its text.
        if is_full(error) or any(sign in str(error) for sign in _SIGNS_OF_FULL):
            raise StorageFull(f"there is no room left in storage for {key}") from error
        raise StorageFailed(f"storage failed at {key}: {type(error).__name__}: {error}") from error


def open_storage(settings: Settings) -> Storage:
    """The storage that the settings name."""
    options = {name: value.get_secret_value() for name, value in settings.storage_options.items()}
    return Storage(settings.resolved_storage_url(), options)
