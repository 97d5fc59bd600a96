"""The dry run: what an input would become, without making a job of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.backends import Backends
from tasks.errors import LineFault
from tasks.figures import model_speed
from tasks.planned_file import PlannedRequest
from tasks.prompts import prompt_text
from tasks.reading import read_input
from tasks.sources import JobInput, open_source
from tasks.submission import JobRequest, check_target, input_file

SHOWN_SAMPLES = 3


@dataclass(frozen=True)
class Sample:
    """One request as it would run."""

    custom_id: str
    prompt: str | None
    """Its last user text, for people."""
    body: bytes
    """UTF-8 JSON."""


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What is known of an input before it runs."""

    faults: list[LineFault]
    """The first ones, by line."""
    fault_count: int
    requests: int
    """Good ones."""
    model: str | None
    samples: Sequence[Sample]
    columns: Sequence[str]
    """Of rows; empty for request lines."""
    estimated_tokens: int
    expected_s: float | None
    """At the model's latest speed; null when it never ran."""

    @property
    def ok(self) -> bool:
        """Whether a job of it would start."""
        return self.fault_count == 0


def check_input(backends: Backends, request: JobRequest, *, shown: int = SHOWN_SAMPLES) -> CheckReport:
    """Read the whole input as intake would, and count every fault.

    Raises:
        UserError: what a job is refused for before its input is read.
        NotFound: there is no such input file.
    """
    check_target(backends, request)
    with backends.database.read() as session:
        file = input_file(session, request)
    samples: list[Sample] = []

    def take(planned: PlannedRequest, _tokens: int) -> None:
        if len(samples) < shown:
            samples.append(Sample(planned.custom_id, prompt_text(planned.body), planned.body))

    given = JobInput(
        kind=request.kind,
        endpoint=request.endpoint,
        model=request.model,
        storage_key=file.storage_key or file.id,
        options=request.options,
        parent_id=request.parent_id,
    )
    source = open_source(backends, given, lambda _: None)
    found = read_input(backends.settings, source, take, to_the_end=True)
    speed = None if source.model is None else model_speed(backends.database, source.model)
    return CheckReport(
        faults=found.faults,
        fault_count=found.fault_count,
        requests=found.requests,
        model=source.model,
        samples=samples,
        columns=source.columns,
        estimated_tokens=found.estimated_tokens,
        expected_s=None if speed is None else found.estimated_tokens / speed,
    )
