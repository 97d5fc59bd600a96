"""Workers, sweepers, dispatch, intake and clients in any order: the database does what the model says.

Each verb is one step, because each is one transaction; what may happen between two of them is what
processes do that die, freeze, or come too late with an old claim in their hands.
"""

from typing import Any

import hypothesis.strategies as st
import pytest
from celery import Celery
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete, update

from tasks.backends import Backends
from tasks.chunks import Lease, lease_chunk, record_results, release_chunk, start_alone
from tasks.dispatch import fill_runway
from tasks.errors import Conflict, LeaseLost, LineFault, NotFound
from tasks.finalise import expire_overdue, settle
from tasks.intake_claim import (
    IntakeClaim,
    PlannedJob,
    accept_plan,
    claim_intake,
    put_off_intake,
    reject_input,
    renew_intake,
)
from tasks.jobs import LEGAL_MOVES, cancel_job, delete_job, get_job, set_lane
from tasks.planned_file import PlannedFileWriter, PlannedRequest
from tasks.sweep import sweep, take_back_expired_leases
from tasks.tables import FINAL_STATUSES, Chunk, ChunkState, Job, JobStatus, Lane
from tests.contract.job_model import ChunkModel, JobModel
from tests.samples import (
    answer,
    change_chunks,
    change_job,
    chunks_of,
    good_input,
    results_of,
    submit,
    with_settings,
)

EXAMPLES = 40
STEPS = 50

LEASE_S = 300.0
LONG_AGO_MS = 1

positions = st.integers(0, 5)


class Life(RuleBasedStateMachine):
    """The lives of some jobs."""

    jobs: Bundle[str] = Bundle("jobs")
    claims: Bundle[IntakeClaim] = Bundle("claims")
    leases: Bundle[Lease] = Bundle("leases")

    def __init__(self, app: Celery, backends: Backends) -> None:
        super().__init__()
        self.app = app
        # There is room for all: who goes first is another test's matter.
        self.backends = with_settings(backends, runway_chunks=1_000_000)
        self.database = backends.database
        self.models: dict[str, JobModel] = {}
        self.seen: dict[str, tuple[JobStatus, list[int]]] = {}
        """Of each job, as the last step left it: its status, and the token of each chunk."""
        self.ended: dict[str, list[Any]] = {}
        """Results of those that have ended."""
        # Those of the example before, which may have failed.
        with self.database.write() as session:
            session.execute(delete(Job))

    @initialize(target=jobs, requests=st.integers(1, 5), per_chunk=st.integers(1, 3))
    def a_job_waits_for_workers(self, requests: int, per_chunk: int) -> str:
        """Where most lives begin: otherwise few get far."""
        job_id = self.submit(requests, per_chunk)
        claim = self.begin_to_read(job_id)
        assert claim is not None
        self.has_plan(claim)
        self.fill_runway()
        return job_id

    # Intake

    @rule(target=jobs, requests=st.integers(1, 5), per_chunk=st.integers(1, 3))
    def somebody_submits(self, requests: int, per_chunk: int) -> str:
        return self.submit(requests, per_chunk)

    def submit(self, requests: int, per_chunk: int) -> str:
        job_id = submit(self.backends, good_input(requests))
        self.models[job_id] = JobModel(job_id, requests, per_chunk)
        return job_id

    @rule(target=claims, job_id=jobs)
    def a_process_begins_to_read(self, job_id: str) -> Any:
        claim = self.begin_to_read(job_id)
        return multiple() if claim is None else claim

    def begin_to_read(self, job_id: str) -> IntakeClaim | None:
        job = self.models[job_id]
        claim = claim_intake(self.database, job_id, LEASE_S)
        may = not job.is_gone and job.status is JobStatus.VALIDATING and job.intake_is_free
        assert (claim is not None) == may
        if claim is None:
            return None
        assert claim.token == job.intake_token + 1
        job.intake_token, job.intake_is_free = claim.token, False
        return claim

    @rule(claim=claims)
    def a_process_has_read_on(self, claim: IntakeClaim) -> None:
        job = self.models[claim.job_id]
        held = job.is_held(claim)
        assert renew_intake(self.database, claim, 1, LEASE_S) == held
        job.intake_is_free &= not held

    @rule(claim=claims)
    def a_process_that_reads_falls_silent(self, claim: IntakeClaim) -> None:
        job = self.models[claim.job_id]
        if job.is_held(claim):
            change_job(self.backends, job.id, intake_expires_ms=LONG_AGO_MS)
            job.intake_is_free = True

    @rule(claim=claims)
    def a_process_cannot_read_now(self, claim: IntakeClaim) -> None:
        put_off_intake(self.database, claim, LEASE_S)
        job = self.models[claim.job_id]
        job.intake_is_free &= not job.is_held(claim)

    @rule(claim=claims)
    def a_process_has_a_plan(self, claim: IntakeClaim) -> None:
        self.has_plan(claim)

    def has_plan(self, claim: IntakeClaim) -> None:
        job = self.models[claim.job_id]
        held = job.is_held(claim)
        assert accept_plan(self.database, claim, self.plan(job, claim.token)) == held
        if held:
            job.start()

    @rule(claim=claims)
    def a_process_finds_faults(self, claim: IntakeClaim) -> None:
        job = self.models[claim.job_id]
        reject_input(self.database, claim, [LineFault("invalid_json", "It is not JSON.", line=1)])
        if job.is_held(claim):
            job.status = JobStatus.FAILED

    def plan(self, job: JobModel, token: int) -> PlannedJob:
        key = f"planned/{job.id}-{token}"
        writer = PlannedFileWriter(self.backends.storage.writer(key))
        rows = []
        for seq, start in enumerate(range(0, job.requests, job.per_chunk)):
            indices = range(start, min(start + job.per_chunk, job.requests))
            offset, length = writer.append([PlannedRequest(index, f"r{index}", b"{}") for index in indices])
            row = {"seq": seq, "offset": offset, "length": length, "requests": len(indices)}
            rows.append(
                {
                    **row,
                    "estimated_tokens": 1,
                    "state": ChunkState.PENDING,
                    "attempt": 0,
                    "lease_token": 0,
                    "alone_starts": 0,
                }
            )
        writer.close()
        return PlannedJob("sim", key, job.requests, estimated_tokens=1, input_bytes=1, chunks=rows)

    # Workers

    @rule()
    def the_runway_is_filled(self) -> None:
        self.fill_runway()

    def fill_runway(self) -> None:
        assert fill_runway(self.app, self.backends, "sim") == sum(job.fill_runway() for job in self.alive())

    @rule(target=leases, job_id=jobs, position=positions)
    def a_worker_gets_a_message(self, job_id: str, position: int) -> Any:
        job = self.models[job_id]
        seq = position % max(1, len(job.chunks))
        lease = lease_chunk(self.database, job_id, seq, "w", LEASE_S)
        chunk = job.chunks[seq] if job.chunks else None
        may = chunk is not None and job.status is JobStatus.IN_PROGRESS and chunk.state is ChunkState.QUEUED
        assert (lease is not None) == may
        if lease is None or chunk is None:
            return multiple()
        chunk.state, chunk.holder, chunk.is_overdue = ChunkState.LEASED, lease, False
        chunk.token += 1
        chunk.attempt += 1
        assert (lease.token, lease.attempt) == (chunk.token, chunk.attempt)
        return lease

    @rule(
        lease=leases, chosen=st.sets(positions), status_code=st.sampled_from([200, 400]), done=st.booleans()
    )
    def a_worker_has_results(self, lease: Lease, chosen: set[int], status_code: int, done: bool) -> None:
        job, chunk = self.of(lease)
        indices = {chunk.indices[position % len(chunk.indices)] for position in chosen}
        indices |= set(chunk.indices) if done else set()
        finish = set(chunk.indices) <= indices | job.results.keys()
        worker = f"w{lease.token}"
        outcomes = [answer(index, status_code=status_code) for index in sorted(indices)]

        def record() -> Any:
            return record_results(
                self.database, lease, outcomes, worker=worker, lease_s=LEASE_S, finish=finish
            )

        if chunk.holder is not lease or job.is_gone or job.has_ended:
            with pytest.raises(LeaseLost):
                record()
            return
        recorded = record()
        for index in indices:
            job.results.setdefault(index, worker)
        chunk.is_overdue = False
        if finish:
            chunk.leave(ChunkState.DONE)
        assert recorded.job_status == job.status
        assert recorded.all_results_in == (len(job.results) == job.total)

    @rule(lease=leases, position=positions)
    def a_worker_starts_a_suspect_alone(self, lease: Lease, position: int) -> None:
        job, chunk = self.of(lease)
        index = chunk.indices[position % len(chunk.indices)]
        if chunk.holder is not lease or job.is_gone:
            with pytest.raises(LeaseLost):
                start_alone(self.database, lease, index)
            return
        last, starts = chunk.alone
        chunk.alone = (index, starts + 1 if index == last else 1)
        assert start_alone(self.database, lease, index) == chunk.alone[1]

    @rule(lease=leases, counts=st.booleans())
    def a_worker_gives_its_chunk_back(self, lease: Lease, counts: bool) -> None:
        _, chunk = self.of(lease)
        attempts = lease.attempt if counts else lease.attempt - 1
        release_chunk(self.database, lease, attempts=attempts)
        if chunk.holder is lease:
            chunk.leave(ChunkState.PENDING)
            chunk.attempt = attempts

    @rule(lease=leases)
    def a_worker_falls_silent(self, lease: Lease) -> None:
        _, chunk = self.of(lease)
        if chunk.holder is lease:
            change_chunk(self.backends, lease, lease_expires_ms=LONG_AGO_MS)
            chunk.is_overdue = True

    # Clients and the clock

    @rule(job_id=jobs)
    def somebody_cancels(self, job_id: str) -> None:
        job = self.models[job_id]
        if job.is_gone or not job.cancel():
            with pytest.raises((Conflict, NotFound)):
                cancel_job(self.database, job_id)
        else:
            cancel_job(self.database, job_id)

    @rule(job_id=jobs, lane=st.sampled_from(Lane))
    def somebody_changes_the_priority(self, job_id: str, lane: Lane) -> None:
        job = self.models[job_id]
        if job.is_gone or not job.change_lane():
            with pytest.raises((Conflict, NotFound)):
                set_lane(self.database, job_id, lane)
        else:
            set_lane(self.database, job_id, lane)

    @rule(job_id=jobs)
    def somebody_deletes(self, job_id: str) -> None:
        job = self.models[job_id]
        if job.is_gone or not job.has_ended:
            with pytest.raises((Conflict, NotFound)):
                delete_job(self.database, job_id)
        else:
            delete_job(self.database, job_id)
            job.is_deleted = True

    @rule(job_id=jobs)
    def the_deadline_passes(self, job_id: str) -> None:
        change_job(self.backends, job_id, deadline_ms=LONG_AGO_MS)
        self.models[job_id].deadline_passed = True

    # The system worker

    @rule()
    def leases_are_taken_back(self) -> None:
        assert take_back_expired_leases(self.database) == sum(job.take_back() for job in self.alive())

    @rule()
    def deadlines_are_looked_at(self) -> None:
        expire_overdue(self.database)
        for job in self.alive():
            job.expire()

    @rule(job_id=jobs)
    def a_job_is_settled(self, job_id: str) -> None:
        job = self.models[job_id]
        if job.is_gone:
            with pytest.raises(NotFound):
                settle(self.backends, job_id)
            return
        job.settle()
        assert settle(self.backends, job_id) == job.status

    @rule()
    def everything_is_swept(self) -> None:
        abandoned = sweep(self.app, self.backends)
        for job in self.alive():
            job.take_back()
            job.expire()
            job.settle()
            job.fill_runway()
            job.is_gone = job.is_deleted and job.has_ended
        assert set(abandoned) == {
            job.id for job in self.alive() if job.status is JobStatus.VALIDATING and job.intake_is_free
        }

    # What must hold after each step

    @invariant()
    def the_database_is_as_the_model(self) -> None:
        for job in self.models.values():
            if job.is_gone:
                assert chunks_of(self.backends, job.id) == []
                assert results_of(self.backends, job.id) == []
                continue
            row = get_job(self.database, job.id)
            chunks = chunks_of(self.backends, job.id)
            results = results_of(self.backends, job.id)
            assert row.status == job.status
            assert row.total == job.total
            assert [(chunk.state, chunk.lease_token, chunk.attempt) for chunk in chunks] == [
                (chunk.state, chunk.token, chunk.attempt) for chunk in job.chunks
            ]
            assert {each.index: each.error_code or "" for each in results} == {
                index: "" if who.startswith("w") else who for index, who in job.results.items()
            }
            self.keeps_its_promises(row, chunks, results)

    def keeps_its_promises(self, row: Job, chunks: list[Chunk], results: list[Any]) -> None:
        """What holds whatever the model says."""
        status = JobStatus(row.status)
        before, tokens = self.seen.get(row.id, (status, []))
        # One step may be several moves, as that of the sweeper is.
        assert status in reachable_from(before)
        assert all(chunk.lease_token >= token for chunk, token in zip(chunks, tokens, strict=False))
        good = sum(each.status_code == 200 for each in results)
        assert (row.completed, row.failed) == (good, len(results) - good)
        assert {each.custom_id for each in results} == {f"r{each.index}" for each in results}
        if status in FINAL_STATUSES:
            assert self.ended.setdefault(row.id, results) == results
            assert len(results) == row.total
            assert all(chunk.state is not ChunkState.QUEUED for chunk in chunks)
        self.seen[row.id] = (status, [chunk.lease_token for chunk in chunks])

    def teardown(self) -> None:
        """Whatever has happened: with workers that work, everything comes to its end."""
        kept = [job for job in self.alive() if not job.is_deleted]
        for _ in range(3):
            for job in kept:
                change_job(self.backends, job.id, intake_expires_ms=LONG_AGO_MS)
                change_chunks(self.backends, job.id, lease_expires_ms=LONG_AGO_MS)
                if claim := claim_intake(self.database, job.id, LEASE_S):
                    accept_plan(self.database, claim, self.plan(job, claim.token))
            sweep(self.app, self.backends)
            for job in kept:
                for chunk in chunks_of(self.backends, job.id):
                    if lease := lease_chunk(self.database, job.id, chunk.seq, "last", LEASE_S):
                        self.run(lease, range(chunk.seq * job.per_chunk, job.requests)[: chunk.requests])
                settle(self.backends, job.id)
        for job in kept:
            assert get_job(self.database, job.id).status in FINAL_STATUSES
            assert all(chunk.state is not ChunkState.LEASED for chunk in chunks_of(self.backends, job.id))

    def run(self, lease: Lease, indices: range) -> None:
        """All of a chunk at once."""
        outcomes = [answer(index) for index in indices]
        record_results(self.database, lease, outcomes, worker="last", lease_s=LEASE_S, finish=True)

    def alive(self) -> list[JobModel]:
        """Jobs of which there is something left."""
        return [job for job in self.models.values() if not job.is_gone]

    def of(self, lease: Lease) -> tuple[JobModel, ChunkModel]:
        """What a lease is of."""
        job = self.models[lease.job_id]
        return job, job.chunks[lease.seq]


def test_in_any_order_the_database_does_what_the_model_says(celery_app: Celery, backends: Backends) -> None:
    class LifeHere(Life):
        def __init__(self) -> None:
            super().__init__(celery_app, backends)

    run_state_machine_as_test(LifeHere, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS))


def change_chunk(backends: Backends, lease: Lease, **values: Any) -> None:
    """Put values straight into the row of a leased chunk."""
    with backends.database.write() as session:
        session.execute(
            update(Chunk).where(Chunk.job_id == lease.job_id, Chunk.seq == lease.seq).values(**values)
        )


def reachable_from(status: JobStatus) -> set[JobStatus]:
    """All states that legal moves lead to."""
    found = {status}
    for after in LEGAL_MOVES[status]:
        found |= reachable_from(after)
    return found
