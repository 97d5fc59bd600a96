"""Identifiers, in OpenAI's shapes."""

import secrets


def new_file_id() -> str:
    """An id for a stored file."""
    return f"file-{secrets.token_hex(12)}"


def new_job_id() -> str:
    """An id for a job; OpenAI calls it a batch."""
    return f"batch_{secrets.token_hex(12)}"


def request_id(job_id: str, index: int) -> str:
    """The id of one request of a job: the same whenever it is asked for."""
    return f"batch_req_{job_id.removeprefix('batch_')}_{index}"
