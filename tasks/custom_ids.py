"""Uniqueness of custom_ids over files of any length: digests, spilled to disk in buckets."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import xxhash

BUCKETS = 64
SPILL_BYTES = 4 << 20
"""Digests held in memory before they go to disk. One bucket of ten million ids is then 3.75 MB."""

_DIGEST_BYTES = 16
_RECORD_BYTES = _DIGEST_BYTES + 8


class CustomIds:
    """Collects the custom_ids of one file and names those that repeat an earlier one.

    Memory stays within `SPILL_BYTES` while lines are read and one bucket while duplicates are looked for.
    Two ids are taken for equal when their 128-bit digests are, under a seed that is new for every file.
    """

    def __init__(self) -> None:
        self._seed = int.from_bytes(os.urandom(8))
        self._buckets = [bytearray() for _ in range(BUCKETS)]
        self._held_bytes = 0
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, custom_id: str, line: int) -> None:
        """Remember the id of this line."""
        digest = xxhash.xxh3_128_digest(custom_id.encode(), self._seed)
        self._buckets[digest[0] % BUCKETS] += digest + line.to_bytes(8)
        self._held_bytes += _RECORD_BYTES
        if self._held_bytes >= SPILL_BYTES:
            self._spill()

    def duplicates(self) -> Iterator[tuple[int, int]]:
        """Yield (line, earlier line) for each line whose id an earlier line has, in no particular order."""
        for number, bucket in enumerate(self._buckets):
            records = bytes(bucket)
            if self._folder is not None:
                records = self._file(number).read_bytes() + records
            first_line: dict[bytes, bytes] = {}
            for start in range(0, len(records), _RECORD_BYTES):
                middle = start + _DIGEST_BYTES
                line = records[middle : start + _RECORD_BYTES]
                earlier = first_line.setdefault(records[start:middle], line)
                if earlier is not line:
                    yield int.from_bytes(line), int.from_bytes(earlier)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="gristmill-ids-")
            for number in range(BUCKETS):
                self._file(number).touch()
        for number, bucket in enumerate(self._buckets):
            with self._file(number).open("ab") as file:
                file.write(bucket)
            bucket.clear()
        self._held_bytes = 0

    def _file(self, number: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / str(number)
