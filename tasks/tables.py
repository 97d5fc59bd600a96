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


class JobKind(StrEnum):
    """Where a job's requests come from."""

    REQUESTS = "requests"
    """A file of request lines, as OpenAI's batches have."""
    ROWS = "rows"
    """A table whose rows fill a template; `Job.options` holds the `RowsSpec`."""
    RERUN = "rerun"
    """The requests of `Job.parent_id` that did not succeed."""
    SINGLE = "single"
    """One request that a client waits for; not listed."""


class Role(StrEnum):
    """What a key may do. Each role may do what those before it may."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """0 may least."""
        return list(Role).index(self)


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


class ResultSet(StrEnum):
    """Which results of a job."""

    ALL = "all"
    OUTPUT = "output"
    """Those with status 200: OpenAI's output file."""
    ERRORS = "errors"
    """All others: OpenAI's error file."""


class TallySubject(StrEnum):
    """What results are counted by."""

    LATENCY = "latency"
    """Time in the engine; the key is a bucket's upper bound in ms."""
    FAILURE = "failure"
    """Why a request failed; the key is a status code or an error code."""


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


class Key(Table):
    """An API key. The secret itself is not kept."""

    __tablename__ = "keys"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    name: Mapped[str]
    role: Mapped[str]
    prefix: Mapped[str] = mapped_column(unique=True)
    """First characters of the key: finds its row, and is shown so that people recognise it."""
    sha256: Mapped[str]
    """Of the whole key, in hexadecimal. A plain hash does: the secret has 256 random bits."""
    created_ms: Mapped[int]
    revoked_ms: Mapped[int | None]


class File(Table):
    """A stored file, or the results of a job that has ended as if they were one."""

    __tablename__ = "files"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    purpose: Mapped[str]
    filename: Mapped[str]
    bytes: Mapped[int]
    sha256: Mapped[str]
    storage_key: Mapped[str | None]
    """Null for results, which are read from the database, and once the bytes are gone."""
    job_id: Mapped[str | None] = mapped_column(index=True)
    """The job whose results these are, or that was made together with this input."""
    created_ms: Mapped[int]
    expires_ms: Mapped[int | None]
    deleted_ms: Mapped[int | None]
    """No longer visible; the bytes stay until no job needs them."""

    __table_args__ = (Index("files_by_age", "tenant", "created_ms", "id"),)


class UploadStatus(StrEnum):
    """OpenAI's upload states; `expired` is a pending one past its time."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Upload(Table):
    """A file that comes in parts."""

    __tablename__ = "uploads"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    purpose: Mapped[str]
    filename: Mapped[str]
    bytes: Mapped[int]
    """The size that all parts together must have."""
    status: Mapped[str]
    file_id: Mapped[str | None] = mapped_column(ForeignKey("files.id"))
    """The whole file, once it is complete."""
    file_expires_s: Mapped[int | None]
    """Seconds that the file is kept; null: as the settings say."""
    created_ms: Mapped[int]
    expires_ms: Mapped[int] = mapped_column(index=True)


class UploadPart(Table):
    """Some bytes of an upload, in storage of their own until it is complete."""

    __tablename__ = "upload_parts"
    id: Mapped[str] = mapped_column(primary_key=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"), index=True)
    storage_key: Mapped[str]
    bytes: Mapped[int]
    created_ms: Mapped[int]


class Job(Table):
    """One submission; an OpenAI batch."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    kind: Mapped[str] = mapped_column(default=JobKind.REQUESTS)
    parent_id: Mapped[str | None]
    """The job that this one runs again in part."""
    endpoint: Mapped[str]
    model: Mapped[str | None]
    """Null until intake has read the first line of a job that named none."""
    lane: Mapped[str]
    status: Mapped[str] = mapped_column(index=True)
    input_file_id: Mapped[str | None] = mapped_column(ForeignKey("files.id"))
    """Null for a single request."""
    idempotency_key: Mapped[str | None]
    idempotency_sha256: Mapped[str | None]
    """Of the submission that came with the key: another one with the same key is refused."""
    resume_key: Mapped[str | None] = mapped_column(unique=True)
    """Finds the job again when the same command is repeated; cleared when its results were delivered."""
    job_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    options: Mapped[dict[str, Any]]
    output_expires_s: Mapped[int | None]
    """Seconds that its output and error files are kept, counted from its end; null: as long as the job."""
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
    output_bytes: Mapped[int] = mapped_column(default=0)
    """Size of the output file with the results there are."""
    error_bytes: Mapped[int] = mapped_column(default=0)

    planned_key: Mapped[str | None]
    """Storage key of the planned file, while there is one: as long as the input is kept."""
    intake_token: Mapped[int] = mapped_column(default=0)
    intake_attempts: Mapped[int] = mapped_column(default=0)
    """Times a process began to read the input and vanished; faults of the machine it saw do not count."""
    intake_expires_ms: Mapped[int | None]
    """Until then nobody else begins."""
    intake_bytes: Mapped[int] = mapped_column(default=0)
    """Input read so far."""

    created_ms: Mapped[int]
    deadline_ms: Mapped[int]
    deleted_ms: Mapped[int | None]
    """No longer visible; the sweeper removes what belongs to it."""
    in_progress_ms: Mapped[int | None]
    finalizing_ms: Mapped[int | None]
    completed_ms: Mapped[int | None]
    failed_ms: Mapped[int | None]
    expired_ms: Mapped[int | None]
    cancelling_ms: Mapped[int | None]
    cancelled_ms: Mapped[int | None]

    __table_args__ = (
        Index("jobs_by_age", "tenant", "created_ms", "id"),
        Index("jobs_by_idempotency_key", "tenant", "idempotency_key", unique=True),
    )


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
    """Times a worker started it and did not come to its end; what was nobody's fault does not count."""
    alone_index: Mapped[int | None]
    """The request of a suspect chunk that was started by itself last."""
    alone_starts: Mapped[int] = mapped_column(default=0)
    """How often it was."""
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
    chunk: Mapped[int]
    """Sequence number of its chunk, whose frame in the planned file has the request."""
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


class Progress(Table):
    """What a job got done in one stretch of time, counted with the results."""

    __tablename__ = "progress"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    start_ms: Mapped[int] = mapped_column(primary_key=True)
    width_ms: Mapped[int]
    requests: Mapped[int]
    failed: Mapped[int]
    input_tokens: Mapped[int]
    output_tokens: Mapped[int]

    __table_args__ = (Index("progress_by_time", "start_ms"),)


class Tally(Table):
    """How many of a job's results are of one kind, counted with them."""

    __tablename__ = "tallies"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    """A `TallySubject`."""
    key: Mapped[str] = mapped_column(primary_key=True)
    count: Mapped[int]


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
