"""Intake: one pass over an input that checks every request and writes the planned file."""

import time
from contextlib import suppress
from secrets import token_hex
from typing import Any

import structlog

from config.settings import Settings
from tasks.backends import Backends
from tasks.errors import LineFault
from tasks.failpoints import Failpoint, failpoint
from tasks.faults import DATABASE_AWAY, StorageFailed
from tasks.intake_claim import (
    IntakeClaim,
    PlannedJob,
    accept_plan,
    claim_intake,
    put_off_intake,
    reject_input,
    renew_intake,
)
from tasks.plan import ChunkCutter, PlannedChunk
from tasks.planned_file import PlannedFileWriter, PlannedRequest
from tasks.reading import read_input
from tasks.sources import input_of, open_source
from tasks.storage import StoredObjectMissing
from tasks.tables import ChunkState

log = structlog.get_logger()

PROGRESS_S = 1.0
"""Seconds between two renewals of the claim, which also show progress and notice a cancelled job."""


MACHINE_PAUSE_S = 5.0
"""How long a job waits whose intake met a fault of the machine."""


class _Superseded(Exception):
    """The claim is gone: cancelled, expired, or taken over by another process."""


def run_intake(backends: Backends, job_id: str) -> None:
    """Validate and plan a job, or end it as `failed`; does nothing when another process has it."""
    settings = backends.settings
    claim = claim_intake(backends.database, job_id, settings.lease_s)
    if claim is None:
        return
    if claim.attempt > settings.max_attempts:
        message = "The input could not be read, as often as it was tried."
        reject_input(backends.database, claim, [LineFault("input_unreadable", message)])
        return
    started = time.monotonic()
    planned_key = f"planned/{job_id}-{token_hex(4)}"
    plan: PlannedJob | list[LineFault]
    try:
        plan = _Pass(backends, claim, planned_key).read()
    except _Superseded:
        log.info("intake_superseded", job=job_id)
        return
    except StoredObjectMissing:
        plan = [LineFault("input_missing", "The input file is no longer in storage.")]
    except (StorageFailed, *DATABASE_AWAY) as error:
        # Nobody's fault here: a full disk or a lost database must not end the job.
        log.warning("intake_put_off", job=job_id, error=repr(error))
        with suppress(StorageFailed):
            backends.storage.delete(planned_key)
        put_off_intake(backends.database, claim, MACHINE_PAUSE_S)
        return
    if isinstance(plan, list):
        reject_input(backends.database, claim, plan)
        log.info("input_rejected", job=job_id, faults=len(plan))
    elif accept_plan(backends.database, claim, plan):
        log.info(
            "job_planned",
            job=job_id,
            requests=plan.total,
            chunks=len(plan.chunks),
            input_bytes=plan.input_bytes,
            seconds=round(time.monotonic() - started, 3),
        )
    else:
        backends.storage.delete(planned_key)


class _Pass:
    """The state of one reading."""

    def __init__(self, backends: Backends, claim: IntakeClaim, planned_key: str) -> None:
        self._backends = backends
        self._settings: Settings = backends.settings
        self._claim = claim
        self._planned_key = planned_key
        self._read_bytes = 0
        self._renewed = time.monotonic()
        self._chunks: list[dict[str, Any]] = []

    def read(self) -> PlannedJob | list[LineFault]:
        """The plan of a good input, or the faults of a bad one, at most `max_listed_errors`."""
        settings = self._settings
        source = open_source(
            self._backends, input_of(self._backends.database, self._claim.job_id), self._keep_claim
        )
        cutter = ChunkCutter(settings.chunk_requests, settings.chunk_tokens)
        writer = PlannedFileWriter(self._backends.storage.writer(self._planned_key))

        def take(request: PlannedRequest, tokens: int) -> None:
            if chunk := cutter.add(request, tokens):
                self._append(writer, chunk)

        found = read_input(settings, source, take, to_the_end=False)
        if found.faults:
            return found.faults
        if chunk := cutter.rest():
            self._append(writer, chunk)
        writer.close()
        failpoint(Failpoint.PLAN_WRITTEN)
        assert source.model is not None
        return PlannedJob(
            model=source.model,
            planned_key=self._planned_key,
            total=found.requests,
            estimated_tokens=found.estimated_tokens,
            input_bytes=self._read_bytes,
            chunks=self._chunks,
        )

    def _append(self, writer: PlannedFileWriter, chunk: PlannedChunk) -> None:
        offset, length = writer.append(chunk.requests)
        self._chunks.append(
            {
                "seq": len(self._chunks),
                "offset": offset,
                "length": length,
                "requests": len(chunk.requests),
                "estimated_tokens": chunk.estimated_tokens,
                "prefix_group": None,
                "state": ChunkState.PENDING,
                "attempt": 0,
                "lease_token": 0,
            }
        )

    def _keep_claim(self, read_bytes: int) -> None:
        """Count what was read, and keep the claim alive on the way."""
        self._read_bytes += read_bytes
        now = time.monotonic()
        if now - self._renewed > PROGRESS_S:
            self._renewed = now
            lease_s = self._settings.lease_s
            if not renew_intake(self._backends.database, self._claim, self._read_bytes, lease_s):
                raise _Superseded
