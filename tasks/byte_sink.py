"""Bytes on their way into storage; nobody sees them before they are complete."""

import hashlib
from contextlib import suppress

from tasks.errors import UserError
from tasks.faults import StorageFailed
from tasks.storage import Storage


class ByteSink:
    """One object of at most `limit_bytes` bytes."""

    def __init__(self, storage: Storage, storage_key: str, limit_bytes: int, limit_name: str) -> None:
        self.storage_key = storage_key
        self.size_bytes = 0
        self._has_ended = False
        self._storage = storage
        self._limit_bytes = limit_bytes
        self._limit_name = limit_name
        self._writer = storage.writer(storage_key)
        self._digest = hashlib.sha256()

    def write(self, data: bytes, /) -> int:
        """Take the next bytes.

        Raises:
            UserError: there are more than the limit.
        """
        self.size_bytes += len(data)
        if self.size_bytes > self._limit_bytes:
            raise UserError(
                f"The file is larger than {self._limit_bytes} bytes ({self._limit_name}).",
                code="file_too_large",
                param="file",
            )
        self._digest.update(data)
        self._writer.write(data)
        return len(data)

    def seek(self, _offset: int, _whence: int = 0, /) -> int:
        """Form parsers go back to the start of what they wrote; there is nothing to go back to."""
        return 0

    @property
    def sha256(self) -> str:
        """Of the bytes so far, in hexadecimal."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Make the bytes visible in storage."""
        self._writer.close()
        self._has_ended = True

    def abandon(self) -> None:
        """Leave nothing behind; of a sink that was closed or abandoned before, this changes nothing."""
        if self._has_ended:
            return
        # Closed first, because that is how every storage drops its parts; on a full disk it cannot be.
        with suppress(StorageFailed):
            self.close()
        self._has_ended = True
        with suppress(StorageFailed):
            self._storage.delete(self.storage_key)
