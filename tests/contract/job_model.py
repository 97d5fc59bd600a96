"""What a job may be and become, said a second time and without a database: the stateful test's oracle."""

from dataclasses import dataclass, field

from tasks.chunks import Lease
from tasks.intake_claim import IntakeClaim
from tasks.tables import FINAL_STATUSES, ChunkState, JobStatus


@dataclass
class ChunkModel:
    """One chunk."""

    indices: range
    state: ChunkState = ChunkState.PENDING
    token: int = 0
    attempt: int = 0
    holder: Lease | None = None
    """The one lease under which something may be written."""
    is_overdue: bool = False
    """Its lease has run out, and nobody has taken it back yet."""
    alone: tuple[int, int] = (-1, 0)
    """The request that was last started by itself, and how often."""

    def leave(self, state: ChunkState) -> None:
        """Nobody has it any more."""
        self.state, self.holder, self.is_overdue = state, None, False


@dataclass
class JobModel:
    """One job."""

    id: str
    requests: int
    per_chunk: int
    status: JobStatus = JobStatus.VALIDATING
    chunks: list[ChunkModel] = field(default_factory=list)
    results: dict[int, str] = field(default_factory=dict)
    """Index to who wrote it, or to why it never ran."""
    intake_token: int = 0
    intake_is_free: bool = True
    """Nobody reads the input, or whoever did fell silent."""
    deadline_passed: bool = False
    has_expired: bool = False
    is_deleted: bool = False
    is_gone: bool = False
    """Nothing of it is left."""

    @property
    def total(self) -> int:
        """Requests, once it is planned."""
        return sum(len(chunk.indices) for chunk in self.chunks)

    @property
    def has_ended(self) -> bool:
        """Whether it is in a final state."""
        return self.status in FINAL_STATUSES

    def is_held(self, claim: IntakeClaim) -> bool:
        """Whether the plan of this claim is still wanted."""
        return self.status is JobStatus.VALIDATING and claim.token == self.intake_token

    def start(self) -> None:
        """Its plan is accepted."""
        starts = range(0, self.requests, self.per_chunk)
        self.chunks = [
            ChunkModel(range(start, min(start + self.per_chunk, self.requests))) for start in starts
        ]
        self.status = JobStatus.IN_PROGRESS

    def fill_runway(self) -> int:
        """All that waits goes onto the runway; how many."""
        waiting = [chunk for chunk in self.chunks if chunk.state is ChunkState.PENDING]
        if self.status is not JobStatus.IN_PROGRESS:
            return 0
        for chunk in waiting:
            chunk.state = ChunkState.QUEUED
        return len(waiting)

    def take_back(self) -> int:
        """Leases that have run out end; how many."""
        silent = [chunk for chunk in self.chunks if chunk.is_overdue]
        for chunk in silent:
            chunk.leave(ChunkState.PENDING)
        return len(silent)

    def expire(self) -> None:
        """Its deadline is looked at."""
        if self.deadline_passed and self.status is JobStatus.VALIDATING:
            self.status = JobStatus.EXPIRED
        elif self.deadline_passed and self.status is JobStatus.IN_PROGRESS:
            self.status, self.has_expired = JobStatus.FINALIZING, True

    def cancel(self) -> bool:
        """Whether it can be."""
        if self.status in (JobStatus.VALIDATING, JobStatus.IN_PROGRESS):
            self.status = JobStatus.CANCELLING
            for chunk in self.chunks:
                if chunk.state in (ChunkState.PENDING, ChunkState.QUEUED):
                    chunk.state = ChunkState.DONE
        return self.status is JobStatus.CANCELLING

    def change_lane(self) -> bool:
        """Whether that still means something."""
        if self.has_ended:
            return False
        for chunk in self.chunks:
            if chunk.state is ChunkState.QUEUED:
                chunk.state = ChunkState.PENDING
        return True

    def settle(self) -> None:
        """It goes as far towards its end as it can."""
        if self.status is JobStatus.IN_PROGRESS and len(self.results) >= self.total:
            self.status = JobStatus.FINALIZING
        if self.status is JobStatus.FINALIZING:
            self._fill("batch_expired")
            self.status = JobStatus.EXPIRED if self.has_expired else JobStatus.COMPLETED
        elif self.status is JobStatus.CANCELLING and not self._somebody_works():
            self._fill("batch_cancelled")
            self.status = JobStatus.CANCELLED

    def _somebody_works(self) -> bool:
        return any(chunk.holder is not None and not chunk.is_overdue for chunk in self.chunks)

    def _fill(self, why: str) -> None:
        if len(self.results) == self.total:
            return
        for chunk in self.chunks:
            chunk.token += 1
            chunk.leave(ChunkState.DONE)
            for index in chunk.indices:
                self.results.setdefault(index, why)
