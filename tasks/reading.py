"""One pass over an input: every request checked, every fault found. What intake and the dry run share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest

from config.settings import Settings
from tasks.custom_ids import CustomIds
from tasks.errors import LineFault
from tasks.plan import estimate_tokens
from tasks.planned_file import PlannedRequest
from tasks.sources import Source

Take = Callable[[PlannedRequest, int], None]
"""Gets each request and its estimated tokens, in input order, as long as there is no fault."""


@dataclass
class Reading:
    """What an input holds."""

    faults: list[LineFault] = field(default_factory=list)
    """The first ones, by line."""
    fault_count: int = 0
    requests: int = 0
    estimated_tokens: int = 0

    def add(self, faults: list[LineFault], most: int) -> None:
        """Count faults, and keep them as long as there are fewer than `most`."""
        self.fault_count += len(faults)
        self.faults += faults[: most - len(self.faults)]


def read_input(settings: Settings, source: Source, take: Take, *, to_the_end: bool) -> Reading:
    """Read a source; `to_the_end` goes on after `max_listed_errors` faults, so that all are counted."""
    most = settings.max_listed_errors
    most_requests = settings.max_requests
    found = Reading()
    # Counted here rather than in `found`: this loop runs once for each of millions of lines.
    requests = estimated_tokens = 0
    with CustomIds() as custom_ids:
        remember = custom_ids.add
        for number, index, request in source.items():
            if isinstance(request, list):
                found.add(request, most)
                if found.fault_count >= most and not to_the_end:
                    break
                continue
            if requests >= most_requests:
                message = f"The file has more than {most_requests} requests (max_requests)."
                found.add([LineFault("too_many_tasks", message, number)], most)
                break
            custom_id, body = request.custom_id, request.body
            remember(custom_id, number)
            tokens = estimate_tokens(len(body), request.max_output_tokens)
            if not found.fault_count:
                take(PlannedRequest(requests if index is None else index, custom_id, body), tokens)
            estimated_tokens += tokens
            requests += 1
        else:
            _add_duplicates(found, custom_ids, most)
    found.requests, found.estimated_tokens = requests, estimated_tokens
    if not found.fault_count and not requests:
        found.add([LineFault("empty_file", "The file has no requests.")], most)
    return found


def _add_duplicates(found: Reading, custom_ids: CustomIds, most: int) -> None:
    count = 0

    def counted() -> Iterator[tuple[int, int]]:
        nonlocal count
        for pair in custom_ids.duplicates():
            count += 1
            yield pair

    # Only the first ones are kept, however many there are.
    repeated = [
        LineFault("duplicate_custom_id", f"'custom_id' repeats that of line {earlier}.", line, "custom_id")
        for line, earlier in nsmallest(most, counted())
    ]
    found.fault_count += count
    found.faults = sorted([*found.faults, *repeated], key=lambda fault: fault.line or 0)[:most]
