"""Work that is done again and again on a thread of its own, whatever happened the time before."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from tasks.faults import MACHINE_FAULTS

log = structlog.get_logger()


class Periodic:
    """Does `work` every `period_s` seconds while the block runs, the first time after one period."""

    def __init__(self, name: str, period_s: float, work: Callable[[], object]) -> None:
        self._name = name
        self._period_s = period_s
        self._work = work
        self.ended = threading.Event()
        """Set at the end of the block: work under way may be left."""
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()

    def _repeat(self) -> None:
        while not self.ended.wait(self._period_s):
            try:
                self._work()
            except MACHINE_FAULTS as error:
                log.warning(f"{self._name}_failed", error=repr(error))
            except Exception as error:
                # A fault of ours; but the next time may find other things to do.
                log.error(f"{self._name}_crashed", exc_info=error)
