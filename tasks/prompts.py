"""The requests behind results, to show a prompt beside its answer."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import select

from tasks.backends import Backends
from tasks.planned_file import PlannedRequest, read_frame
from tasks.results import StoredResult
from tasks.storage import StoredObjectMissing
from tasks.tables import Chunk, Job


def requests_of(backends: Backends, job: Job, results: Sequence[StoredResult]) -> dict[int, PlannedRequest]:
    """The requests of these results by index; empty once the job's requests are no longer kept."""
    if job.planned_key is None or not results:
        return {}
    wanted = {result.index for result in results}
    with backends.database.read() as session:
        chunks = session.execute(
            select(Chunk.offset, Chunk.length)
            .where(Chunk.job_id == job.id, Chunk.seq.in_({result.chunk for result in results}))
            .order_by(Chunk.seq)
        ).all()
    found: dict[int, PlannedRequest] = {}
    try:
        for offset, length in chunks:
            requests = read_frame(backends.storage, job.planned_key, offset, length)
            found.update((request.index, request) for request in requests if request.index in wanted)
    except StoredObjectMissing:
        return {}
    return found


def prompt_text(body: bytes) -> str | None:
    """What a person would call the prompt: the last user message, the prompt or the input, as text."""
    match msgspec.json.decode(body):
        case {"messages": [*_, {"content": content}]}:
            return _text(content)
        case {"prompt": prompt} | {"input": prompt} | {"query": prompt}:
            return _text(prompt)
        case {"text_1": text, "text_2": other}:
            return _text([text, other])
    return None


def _text(content: Any) -> str | None:
    match content:
        case str():
            return content
        case [*_, {"role": _, "content": part}]:
            return _text(part)
        case [*parts]:
            texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
            return "\n".join(text for text in texts if isinstance(text, str)) or None
    return None
