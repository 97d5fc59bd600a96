"""Identifiers, in OpenAI's shapes."""

import re
import secrets

from tasks.tables import ResultSet

_RESULT_FILE = re.compile(r"file-([0-9a-f]{24})-(output|errors)")


def new_file_id() -> str:
    """An id for a stored file."""
    return f"file-{secrets.token_hex(12)}"


def new_job_id() -> str:
    """An id for a job; OpenAI calls it a batch."""
    return f"batch_{secrets.token_hex(12)}"


def request_id(job_id: str, index: int) -> str:
    """The id of one request of a job: the same whenever it is asked for."""
    return f"batch_req_{job_id.removeprefix('batch_')}_{index}"


def new_key_id() -> str:
    """An id for an API key: not the key itself."""
    return f"key_{secrets.token_hex(12)}"


def new_upload_id() -> str:
    """An id for a file that comes in parts."""
    return f"upload_{secrets.token_hex(12)}"


def new_part_id() -> str:
    """An id for one part of it."""
    return f"part_{secrets.token_hex(12)}"


def result_file_id(job_id: str, which: ResultSet) -> str:
    """The id of the file that a job's results are read as."""
    return f"file-{job_id.removeprefix('batch_')}-{which}"


def job_of_result_file(file_id: str) -> tuple[str, ResultSet] | None:
    """The job and the part of its results that such an id names; null for all other ids."""
    match = _RESULT_FILE.fullmatch(file_id)
    return (f"batch_{match[1]}", ResultSet(match[2])) if match else None
