"""What a worker reports of one request."""

from dataclasses import dataclass

NEVER_RUN = frozenset({"batch_cancelled", "batch_expired"})
"""Error codes of requests that no engine ever had."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request."""

    index: int
    custom_id: str
    status_code: int | None
    body: bytes | None
    """UTF-8 JSON; null when there was no HTTP-like answer."""
    error_code: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    duration_ms: int = 0

    @property
    def has_run(self) -> bool:
        """Whether an engine had it. A job that ends early gives the rest of its requests results too."""
        return self.error_code not in NEVER_RUN

    @property
    def succeeded(self) -> bool:
        """Whether it belongs into the output file rather than the error file."""
        return self.status_code == 200
