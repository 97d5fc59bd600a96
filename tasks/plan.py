"""How the requests of a job are ordered and cut into chunks."""

from dataclasses import dataclass

from tasks.planned_file import PlannedRequest

BODY_BYTES_PER_TOKEN = 4
"""A rule of thumb for JSON bodies in European languages; only used to size chunks and to show progress."""

ASSUMED_OUTPUT_TOKENS = 256
"""Output of a request that sets no limit."""

MOST_ASSUMED_OUTPUT_TOKENS = 4096
"""Limits above this are nearly always 'as much as you need'."""

CHUNK_BYTES = 8 << 20
"""Most bytes of bodies in a chunk, unless one request alone has more; bounds what a worker holds."""


def estimate_tokens(body_bytes: int, max_output_tokens: int | None) -> int:
    """Tokens a request will take in the engine, prompt and output."""
    output = ASSUMED_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens
    if output > MOST_ASSUMED_OUTPUT_TOKENS:
        output = MOST_ASSUMED_OUTPUT_TOKENS
    return body_bytes // BODY_BYTES_PER_TOKEN + output


@dataclass(frozen=True)
class PlannedChunk:
    """Requests that travel together."""

    requests: list[PlannedRequest]
    estimated_tokens: int


class ChunkCutter:
    """Collects requests until they make a chunk.

    Requests run in input order. Ordering by shared prefix and expected length belongs here: before a
    request is added, over a window of what intake has read.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._requests: list[PlannedRequest] = []
        self._tokens = 0
        self._bytes = 0

    def add(self, request: PlannedRequest, tokens: int) -> PlannedChunk | None:
        """Take one request; returns the finished chunk that it did not fit into, if there is one."""
        full = None
        if self._requests and (
            len(self._requests) >= self._max_requests
            or self._tokens + tokens > self._max_tokens
            or self._bytes + len(request.body) > CHUNK_BYTES
        ):
            full = self.rest()
        self._requests.append(request)
        self._tokens += tokens
        self._bytes += len(request.body)
        return full

    def rest(self) -> PlannedChunk | None:
        """What has been collected since the last finished chunk, if anything."""
        chunk = PlannedChunk(self._requests, self._tokens) if self._requests else None
        self._requests, self._tokens, self._bytes = [], 0, 0
        return chunk
