"""Cutting requests into chunks, and the file they are kept in."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import plan, planned_file
from tasks.plan import ChunkCutter, PlannedChunk, estimate_tokens
from tasks.planned_file import PlannedFileWriter, PlannedRequest, read_frame
from tasks.storage import Storage, StoredObjectMissing

REQUESTS = st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 50)), max_size=40).map(
    lambda pairs: [
        (PlannedRequest(index, f"r{index}", body), tokens) for index, (body, tokens) in enumerate(pairs)
    ]
)


def cut(requests: list[tuple[PlannedRequest, int]], max_requests: int, max_tokens: int) -> list[PlannedChunk]:
    cutter = ChunkCutter(max_requests, max_tokens)
    chunks = [cutter.add(request, tokens) for request, tokens in requests]
    return [chunk for chunk in [*chunks, cutter.rest()] if chunk is not None]


@given(
    requests=REQUESTS,
    max_requests=st.integers(1, 10),
    max_tokens=st.integers(1, 100),
    chunk_bytes=st.integers(1, 100),
)
def test_chunks_keep_all_requests_in_order_within_the_limits(
    requests: list[tuple[PlannedRequest, int]], max_requests: int, max_tokens: int, chunk_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "CHUNK_BYTES", chunk_bytes)
        chunks = cut(requests, max_requests, max_tokens)
    assert [request for chunk in chunks for request in chunk.requests] == [request for request, _ in requests]
    tokens_of = {request.index: tokens for request, tokens in requests}
    for chunk in chunks:
        assert 1 <= len(chunk.requests) <= max_requests
        assert chunk.estimated_tokens == sum(tokens_of[request.index] for request in chunk.requests)
        if len(chunk.requests) > 1:
            assert chunk.estimated_tokens <= max_tokens
            assert sum(len(request.body) for request in chunk.requests) <= chunk_bytes
    # No chunk was ended before it had to be.
    for chunk, following in pairwise(chunks):
        first = following.requests[0]
        assert (
            len(chunk.requests) == max_requests
            or chunk.estimated_tokens + tokens_of[first.index] > max_tokens
            or sum(len(request.body) for request in [*chunk.requests, first]) > chunk_bytes
        )


def test_a_cutter_that_got_nothing_has_no_rest() -> None:
    cutter = ChunkCutter(2, 100)
    assert cutter.rest() is None
    cutter.add(PlannedRequest(0, "a", b"{}"), 1)
    assert cutter.rest() is not None
    assert cutter.rest() is None


@pytest.mark.parametrize(
    ("body_bytes", "limit", "tokens"),
    [
        # Four bytes a token, and what is assumed of an answer.
        (400, None, 100 + plan.ASSUMED_OUTPUT_TOKENS),
        (400, 10, 110),
        # "As much as you need" is not taken by its word.
        (400, 10**9, 100 + plan.MOST_ASSUMED_OUTPUT_TOKENS),
        (0, 1, 1),
    ],
)
def test_tokens_are_estimated_from_size_and_limit(body_bytes: int, limit: int | None, tokens: int) -> None:
    assert estimate_tokens(body_bytes, limit) == tokens


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage((tmp_path / "storage").as_uri())


@pytest.mark.parametrize("write_bytes", [1, 100, 1 << 20])
def test_a_planned_file_gives_back_every_chunk(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, write_bytes: int
) -> None:
    monkeypatch.setattr(planned_file, "WRITE_BYTES", write_bytes)
    frames = [
        [PlannedRequest(0, "a", b'{"x": "\xc3\xa9"}'), PlannedRequest(1, "\u65e5\u672c \U0001f600", b"{}")],
        [PlannedRequest(2, "c", b"{" + b" " * 100_000 + b"}")],
        [PlannedRequest(index, f"r{index}", b'{"n":%d}' % index) for index in range(3, 500)],
    ]
    writer = PlannedFileWriter(storage.writer("planned/x"))
    places = [writer.append(frame) for frame in frames]
    writer.close()
    # In any order, because workers run in any order.
    for place, frame in reversed(list(zip(places, frames, strict=True))):
        assert read_frame(storage, "planned/x", *place) == frame
    assert places[0][0] == 0
    for (offset, length), (following, _) in pairwise(places):
        assert offset + length == following
    assert storage.size("planned/x") == sum(places[-1])


def test_a_planned_file_is_not_there_before_it_is_closed(storage: Storage) -> None:
    writer = PlannedFileWriter(storage.writer("planned/x"))
    offset, length = writer.append([PlannedRequest(0, "a", b"{}")])
    with pytest.raises(StoredObjectMissing):
        read_frame(storage, "planned/x", offset, length)
    writer.close()
    assert read_frame(storage, "planned/x", offset, length)
