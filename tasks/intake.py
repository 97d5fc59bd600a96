"""Intake: one pass over an input file that checks every line and writes the planned file."""

import time
from collections.abc import Iterator
from heapq import nsmallest
from secrets import token_hex
from typing import Any

import structlog

from config.settings import Settings
from tasks.backends import Backends
from tasks.custom_ids import CustomIds
from tasks.errors import LineFault
from tasks.jobs import IntakeClaim, PlannedJob, accept_plan, claim_intake, reject_input, renew_intake
from tasks.lines import read_lines
from tasks.plan import ChunkCutter, PlannedChunk, estimate_tokens
from tasks.planned_file import PlannedFileWriter, PlannedRequest
from tasks.storage import Sink, StoredObjectMissing
from tasks.tables import ChunkState
from tasks.validation import Validator

log = structlog.get_logger()

PROGRESS_S = 1.0
"""Seconds between two renewals of the claim, which also show progress and notice a cancelled job."""


class _Superseded(Exception):
    """The claim is gone: cancelled, expired, or taken over by another process."""


def run_intake(backends: Backends, job_id: str) -> None:
    """Validate and plan a job, or end it as `failed`; does nothing when another process has it."""
    settings = backends.settings
    claim = claim_intake(backends.database, job_id, settings.lease_s)
    if claim is None:
        return
    if claim.token > settings.max_attempts:
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
        catalogue = settings.catalogue
        validator = Validator(self._claim.endpoint, self._claim.model, catalogue.__contains__)
        check = validator.check
        cutter = ChunkCutter(settings.chunk_requests, settings.chunk_tokens)
        sink: Sink = self._backends.storage.writer(self._planned_key)
        writer = PlannedFileWriter(sink)
        faults: list[LineFault] = []
        total = total_tokens = 0
        with CustomIds() as custom_ids:
            for number, line in read_lines(self._blocks(), settings.max_line_bytes):
                request = check(number, line)
                if isinstance(request, list):
                    faults += request
                    if len(faults) >= settings.max_listed_errors:
                        return faults[: settings.max_listed_errors]
                    continue
                if total >= settings.max_requests:
                    message = f"The file has more than {settings.max_requests} requests (max_requests)."
                    return [*faults, LineFault("too_many_tasks", message, number)]
                custom_ids.add(request.custom_id, number)
                if not faults:
                    tokens = estimate_tokens(len(request.body), request.max_output_tokens)
                    planned = PlannedRequest(total, request.custom_id, request.body)
                    if chunk := cutter.add(planned, tokens):
                        self._append(writer, chunk)
                    total_tokens += tokens
                total += 1
            # Only the first ones are kept, however many there are.
            for line_number, earlier in nsmallest(settings.max_listed_errors, custom_ids.duplicates()):
                message = f"'custom_id' repeats that of line {earlier}."
                faults.append(LineFault("duplicate_custom_id", message, line_number, "custom_id"))
        if faults:
            faults.sort(key=lambda fault: fault.line or 0)
            return faults[: settings.max_listed_errors]
        if total == 0:
            return [LineFault("empty_file", "The file has no requests.")]
        if chunk := cutter.rest():
            self._append(writer, chunk)
        writer.close()
        assert validator.model is not None
        return PlannedJob(
            model=validator.model,
            planned_key=self._planned_key,
            total=total,
            estimated_tokens=total_tokens,
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

    def _blocks(self) -> Iterator[bytes]:
        """The input's blocks; keeps the claim alive on the way."""
        for block in self._backends.storage.stream(self._claim.storage_key):
            now = time.monotonic()
            if now - self._renewed > PROGRESS_S:
                self._renewed = now
                lease_s = self._settings.lease_s
                if not renew_intake(self._backends.database, self._claim, self._read_bytes, lease_s):
                    raise _Superseded
            self._read_bytes += len(block)
            yield block
