"""The planned file: a job's requests in running order, one compressed frame for each chunk."""

import msgspec
import zstandard

from tasks.storage import Sink, Storage

COMPRESSION_LEVEL = 3
"""zstd's default: on frames of this size the lower levels are no faster, and the higher ones cost more of
the one core that reads the input than they save on the disk."""

WRITE_BYTES = 1 << 20
"""Frames are handed to storage together: it keeps what it is handed until a part is full, and thousands of
small pieces that live on while others go leave the heap full of holes."""


class PlannedRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request as a worker gets it."""

    index: int
    """Position in the input, from 0."""
    custom_id: str
    body: bytes
    """JSON object."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[PlannedRequest]).decode


class PlannedFileWriter:
    """Appends frames. The file appears in storage when it is closed."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress
        self._size_bytes = 0
        self._unwritten = bytearray()

    def append(self, requests: list[PlannedRequest]) -> tuple[int, int]:
        """Write one frame; returns its (offset, length) in bytes."""
        frame = self._compress(_encode(requests))
        offset = self._size_bytes
        self._size_bytes += len(frame)
        self._unwritten += frame
        if len(self._unwritten) >= WRITE_BYTES:
            self._write()
        return offset, len(frame)

    def close(self) -> None:
        """Make the file visible."""
        self._write()
        self._sink.close()

    def _write(self) -> None:
        self._sink.write(bytes(self._unwritten))
        self._unwritten.clear()


def read_frame(storage: Storage, key: str, offset: int, length: int) -> list[PlannedRequest]:
    """The requests of one chunk: one range read."""
    return _decode(zstandard.decompress(storage.read_range(key, offset, length)))
