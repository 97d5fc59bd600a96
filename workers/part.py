"""One process of a mill that is kept running: started again when it dies, more and more seldom."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tasks.backoff import backoff_s
from workers.child import Child

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 60.0

WELL_S = 60.0
"""A process that ran so long is forgiven its earlier deaths."""


@dataclass
class Part:
    """A process, and what is known of its deaths."""

    name: str
    """As people read it: `engine worker`."""
    child: Callable[[], Child]
    start_child: Callable[[], None]
    """Starts the process, also after it died."""
    hopeless: frozenset[int] = frozenset()
    """Exit statuses after which it would end in the same way: it is tried again as seldom as can be."""
    deaths: int = 0
    """Since it last ran well."""
    _started_at: float = field(default=0.0, init=False)
    _restart_at: float | None = field(default=None, init=False)

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self.child().is_running

    @property
    def died(self) -> bool:
        """Whether it is down, and nobody has said so yet."""
        return not self.is_running and self._restart_at is None

    @property
    def is_hopeless(self) -> bool:
        """Whether it ended in a way that another start does not mend."""
        return self.child().exit_status in self.hopeless

    def start(self, now: float) -> None:
        """Start it for the first time; `now` is in seconds by any clock that only grows."""
        self.start_child()
        self._started_at = now

    def forgive(self) -> None:
        """It got something done: its deaths so far no longer count."""
        self.deaths = 0

    def tend(self, now: float) -> str | None:
        """Start it again if it died and its time has come; returns what people should know."""
        if self.is_running:
            if self.deaths and now - self._started_at >= WELL_S:
                self.forgive()
            return None
        if self._restart_at is None:
            self.deaths += 1
            wait_s = (
                LONGEST_BACKOFF_S
                if self.is_hopeless
                else backoff_s(self.deaths, FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
            )
            self._restart_at = now + wait_s
            return (
                f"The {self.name} ended with status {self.child().exit_status}; starting another in "
                f"{wait_s:.0f} s. Its log: {self.child().log_file}"
            )
        if now < self._restart_at:
            return None
        self._restart_at = None
        # What is left of its group would hold devices and ports.
        self.child().stop(grace_s=0)
        try:
            self.start(now)
        except (OSError, TimeoutError) as error:
            return f"The {self.name} did not start: {error}"
        return None
