"""The tables. All times are epoch milliseconds by the database's clock; all rows of a job share its id."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, LargeBinary, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class JobStatus(StrEnum):
    """OpenAI's batch states."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


FINAL_STATUSES = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.EXPIRED, JobStatus.CANCELLED})


class ChunkState(StrEnum):
    """Where a chunk is."""

    PENDING = "pending"
    """In the database only."""
    QUEUED = "queued"
    """On the runway: a message for it was, or is about to be, published."""
    LEASED = "leased"
    """A worker runs it."""
    DONE = "done"
    """Every request of it has its result, or will never have one."""


class Lane(StrEnum):
    """Priority classes, most urgent first; one Celery queue per model and lane."""

    URGENT = "urgent"
    NORMAL = "normal"
    BULK = "bulk"

    @property
    def rank(self) -> int:
        """0 is the most urgent, as in vLLM's priorities."""
        return list(Lane).index(self)


class Table(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {int: BigInteger, dict[str, Any]: JSON, list[dict[str, Any]]: JSON, str: Text}  # noqa: RUF012


class File(Table):
    """A stored file."""

    __tablename__ = "files"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    purpose: Mapped[str]
    filename: Mapped[str]
    bytes: Mapped[int]
    sha256: Mapped[str]
    storage_key: Mapped[str]
    created_ms: Mapped[int]
    expires_ms: Mapped[int | None]


class Job(Table):
    """One submission; an OpenAI batch."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    endpoint: Mapped[str]
    model: Mapped[str | None]
    """Null until intake has read the first line of a job that named none."""
    lane: Mapped[str]
    status: Mapped[str] = mapped_column(index=True)
    input_file_id: Mapped[str] = mapped_column(ForeignKey("files.id"))
    resume_key: Mapped[str | None] = mapped_column(unique=True)
    """Finds the job again when the same command is repeated; cleared when its results were delivered."""
    job_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    options: Mapped[dict[str, Any]]
    errors: Mapped[list[dict[str, Any]] | None]
    """Structural faults of the input, as `LineFault` fields."""

    total: Mapped[int] = mapped_column(default=0)
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    estimated_tokens: Mapped[int] = mapped_column(default=0)
    input_tokens: Mapped[int] = mapped_column(default=0)
    cached_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    reasoning_tokens: Mapped[int] = mapped_column(default=0)

    planned_key: Mapped[str | None]
    """Storage key of the planned file, while there is one."""
    intake_token: Mapped[int] = mapped_column(default=0)
    intake_expires_ms: Mapped[int | None]
    intake_bytes: Mapped[int] = mapped_column(default=0)
    """Input read so far."""

    created_ms: Mapped[int]
    deadline_ms: Mapped[int]
    in_progress_ms: Mapped[int | None]
    finalizing_ms: Mapped[int | None]
    completed_ms: Mapped[int | None]
    failed_ms: Mapped[int | None]
    expired_ms: Mapped[int | None]
    cancelling_ms: Mapped[int | None]
    cancelled_ms: Mapped[int | None]


class Chunk(Table):
    """Some requests of one job that travel together."""

    __tablename__ = "chunks"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    offset: Mapped[int]
    """First byte of its frame in the planned file."""
    length: Mapped[int]
    """Bytes of its frame."""
    requests: Mapped[int]
    estimated_tokens: Mapped[int]
    prefix_group: Mapped[int | None]
    state: Mapped[str]
    attempt: Mapped[int] = mapped_column(default=0)
    """Times a worker started it."""
    lease_token: Mapped[int] = mapped_column(default=0)
    """Only grows; a write that carries an older one is refused."""
    lease_owner: Mapped[str | None]
    lease_expires_ms: Mapped[int | None]
    queued_ms: Mapped[int | None]

    __table_args__ = (Index("chunks_by_state", "state", "job_id", "seq"),)


class Result(Table):
    """The one result of a request."""

    __tablename__ = "results"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column("idx", primary_key=True)
    """Position in the input, from 0."""
    custom_id: Mapped[str]
    status_code: Mapped[int | None]
    """Status of the engine's HTTP-like answer; null when there was none."""
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The answer's body, UTF-8 JSON."""
    error_code: Mapped[str | None]
    """Why there was no answer: a key of `REQUEST_ERROR_MESSAGES`."""
    input_tokens: Mapped[int]
    output_tokens: Mapped[int]
    duration_ms: Mapped[int]
    """Time in the engine, waiting included."""
    finished_ms: Mapped[int]
    worker: Mapped[str]


class Worker(Table):
    """A live engine worker, by its heartbeat."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    devices: Mapped[str]
    started_ms: Mapped[int]
    heartbeat_ms: Mapped[int]
    figures: Mapped[dict[str, Any]]
    """The engine's figures at the last heartbeat, see `workers.engine.EngineFigures`."""


class Agent(Table):
    """A host whose slots take engine workers."""

    __tablename__ = "agents"
    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    heartbeat_ms: Mapped[int]
    slots: Mapped[list[dict[str, Any]]]


class Usage(Table):
    """Work done per day, tenant and model, counted once when a job ends."""

    __tablename__ = "usage"
    day: Mapped[str] = mapped_column(primary_key=True)
    """UTC date, YYYY-MM-DD."""
    tenant: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int]
    failed_requests: Mapped[int]
    input_tokens: Mapped[int]
    output_tokens: Mapped[int]


class Audit(Table):
    """Append-only: who or what changed what."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    at_ms: Mapped[int]
    tenant: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    detail: Mapped[dict[str, Any]]
