"""OpenAI's objects as this server answers them: the same fields, always all of them."""

from typing import Literal

from tasks.durations import human_window
from tasks.errors import LineFault
from tasks.files import result_file_id
from tasks.tables import File, Job, JobStatus, Lane, ResultSet, Upload, UploadPart, UploadStatus
from web.api.answers import Answer


class FileObject(Answer):
    """A stored file, or the output or error file of a batch."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"] = "processed"
    status_details: str | None = None


class FileDeleted(Answer):
    """A file that is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FileList(Answer):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchError(Answer):
    """One fault of a batch's input file."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(Answer):
    """Why a batch failed."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(Answer):
    """Requests of a batch by their result."""

    total: int
    completed: int
    failed: int


class InputTokensDetails(Answer):
    """Of the input tokens."""

    cached_tokens: int


class OutputTokensDetails(Answer):
    """Of the output tokens."""

    reasoning_tokens: int


class BatchUsage(Answer):
    """Tokens of a batch's requests."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Batch(Answer):
    """A batch: a job as OpenAI's clients see it."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: JobStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    priority: Lane
    """Not OpenAI's: `urgent`, `normal` or `bulk`."""


class BatchList(Answer):
    """A page of batches, newest first."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelObject(Answer):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    """The catalogue does not know."""
    owned_by: str


class ModelList(Answer):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class UploadObject(Answer):
    """A file that comes in parts."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: UploadStatus
    file: FileObject | None = None


class UploadPartObject(Answer):
    """One part of it."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


def _seconds(epoch_ms: int) -> int:
    return epoch_ms // 1000


def _moment(epoch_ms: int | None) -> int | None:
    return None if epoch_ms is None else _seconds(epoch_ms)


def file_object(file: File) -> FileObject:
    """A file as OpenAI shows it."""
    return FileObject(
        id=file.id,
        bytes=file.bytes,
        created_at=_seconds(file.created_ms),
        expires_at=_moment(file.expires_ms),
        filename=file.filename,
        purpose=file.purpose,
    )


def upload_object(upload: Upload, file: File | None = None) -> UploadObject:
    """An upload as OpenAI shows it."""
    return UploadObject(
        id=upload.id,
        bytes=upload.bytes,
        created_at=_seconds(upload.created_ms),
        expires_at=_seconds(upload.expires_ms),
        filename=upload.filename,
        purpose=upload.purpose,
        status=UploadStatus(upload.status),
        file=None if file is None else file_object(file),
    )


def upload_part_object(part: UploadPart) -> UploadPartObject:
    """A part as OpenAI shows it."""
    return UploadPartObject(id=part.id, created_at=_seconds(part.created_ms), upload_id=part.upload_id)


def batch_object(job: Job) -> Batch:
    """A job as OpenAI shows a batch."""
    window_s = (job.deadline_ms - job.created_ms) // 1000
    return Batch(
        id=job.id,
        endpoint=job.endpoint,
        model=job.model,
        errors=_errors(job),
        input_file_id=job.input_file_id or "",
        completion_window=job.options.get("completion_window") or human_window(window_s),
        status=JobStatus(job.status),
        output_file_id=result_file_id(job, ResultSet.OUTPUT),
        error_file_id=result_file_id(job, ResultSet.ERRORS),
        created_at=_seconds(job.created_ms),
        in_progress_at=_moment(job.in_progress_ms),
        expires_at=_seconds(job.deadline_ms),
        finalizing_at=_moment(job.finalizing_ms),
        completed_at=_moment(job.completed_ms),
        failed_at=_moment(job.failed_ms),
        expired_at=_moment(job.expired_ms),
        cancelling_at=_moment(job.cancelling_ms),
        cancelled_at=_moment(job.cancelled_ms),
        request_counts=RequestCounts(total=job.total, completed=job.completed, failed=job.failed),
        usage=BatchUsage(
            input_tokens=job.input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=job.cached_tokens),
            output_tokens=job.output_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=job.reasoning_tokens),
            total_tokens=job.input_tokens + job.output_tokens,
        ),
        metadata=job.job_metadata,
        priority=Lane(job.lane),
    )


def _errors(job: Job) -> BatchErrors | None:
    if not job.errors:
        return None
    return BatchErrors(data=[batch_error(LineFault(**fault)) for fault in job.errors])


def batch_error(fault: LineFault) -> BatchError:
    """A fault as OpenAI shows it."""
    return BatchError(code=fault.code, line=fault.line, message=fault.message, param=fault.param)
