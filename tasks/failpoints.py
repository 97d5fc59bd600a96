"""Named places at which tests kill a process, to show that the work goes on from there.

Active only where a variable that tests alone set, `MILL_FAILPOINT`, names a folder. A test arms a place by
making a file there that is named like it. The first process that passes removes the file and kills itself,
so that one arming kills one process, whoever starts it again.
"""

import os
import signal
from enum import StrEnum
from pathlib import Path

FAILPOINT_VARIABLE = "MILL_FAILPOINT"


class Failpoint(StrEnum):
    """Each place, and what must hold when the process dies there."""

    FILE_STORED = "file-stored"
    """The bytes are in storage, no row names them: nothing was accepted, no half file is visible."""
    JOB_COMMITTED = "job-committed"
    """The job is in the database, nobody was told: accepted is kept, the sweeper finds it."""
    PLAN_WRITTEN = "plan-written"
    """The planned file is stored, the job does not know: intake runs again, nothing runs twice."""
    PLAN_ACCEPTED = "plan-accepted"
    """The job is planned, none of its chunks is published: the sweeper fills the runway."""
    RUNWAY_TAKEN = "runway-taken"
    """Chunks are marked as queued, their messages were not sent: they are sent again."""
    RUNWAY_PUBLISHED = "runway-published"
    """Messages were sent by a process that then died: nothing is sent for nothing, nothing runs twice."""
    CHUNK_LEASED = "chunk-leased"
    """A worker has a chunk and nothing of it has run: the lease runs out, another one takes it."""
    RESULTS_WRITTEN = "results-written"
    """Results are recorded, the lease goes on: what is recorded does not run again."""
    CHUNK_FINISHED = "chunk-finished"
    """The last results are recorded, the message is not acknowledged: its repetition is dropped."""
    RELEASING = "releasing"
    """A worker that drains dies before it gives its chunk back: the lease runs out."""
    FINALIZING = "finalizing"
    """The job is finalising, its ending is not written: it is ended by the next sweep, and counted once."""
    FILLING = "filling"
    """Some requests of an ending job have been told that they never ran: the others are told later."""
    CANCEL_COMMITTED = "cancel-committed"
    """The job is cancelling, the caller has no answer: the cancel goes on."""
    PURGE_UNSTORED = "purge-unstored"
    """A deleted job's planned file is gone, its rows are not: the next sweep removes them."""


def failpoint(name: Failpoint) -> None:
    """Die here if a test asked for it."""
    armed = os.environ.get(FAILPOINT_VARIABLE)
    if armed is None:
        return
    try:
        # Of two processes that pass at once, one removes it.
        Path(armed, name).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
