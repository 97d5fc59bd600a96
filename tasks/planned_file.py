"""The planned file: a job's requests in running order, one compressed frame for each chunk."""

import msgspec
import zstandard

from tasks.storage import Sink, Storage

COMPRESSION_LEVEL = 1
"""zstd; higher levels cost more of the one core that reads the input than they save on the disk."""


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

    def append(self, requests: list[PlannedRequest]) -> tuple[int, int]:
        """Write one frame; returns its (offset, length) in bytes."""
        frame = self._compress(_encode(requests))
        offset = self._size_bytes
        self._sink.write(frame)
        self._size_bytes += len(frame)
        return offset, len(frame)

    def close(self) -> None:
        """Make the file visible."""
        self._sink.close()


def read_frame(storage: Storage, key: str, offset: int, length: int) -> list[PlannedRequest]:
    """The requests of one chunk: one range read."""
    return _decode(zstandard.decompress(storage.read_range(key, offset, length)))
