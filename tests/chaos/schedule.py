"""Which fault happens when: drawn from a seed before anything starts, so that a run can be repeated."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.mill import Mill

SHORTEST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 2.5
"""Between two faults: a part is back within a second or three."""


@dataclass(frozen=True)
class Planned:
    """One fault at its time."""

    at_s: float
    fault: Fault
    seed: int

    def __str__(self) -> str:
        return f"{self.at_s:6.1f} s  {self.fault.name}"


def plan(seed: int, seconds: float, kinds: set[str]) -> list[Planned]:
    """The faults of a run on these kinds of database and object store.

    They are drawn from a bag that holds each as often as it weighs, and is filled when empty.

    Those that last do not meet another of their kind.
    """
    random = Random(seed)
    possible = [fault for fault in FAULTS.values() if fault.on is None or fault.on in kinds]
    bag: list[Fault] = []
    free_at_s: dict[str, float] = {}
    planned: list[Planned] = []
    at_s = random.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S)
    while at_s < seconds:
        bag = bag or [fault for fault in possible for _ in range(fault.weight)]
        fault = bag.pop(random.randrange(len(bag)))
        if free_at_s.get(fault.name, 0.0) > at_s:
            continue
        free_at_s[fault.name] = at_s + fault.longest_s
        planned.append(Planned(at_s, fault, random.getrandbits(32)))
        at_s += random.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S)
    return planned


def carry_out(
    planned: list[Planned], mill: Mill, seconds: float, tell: Callable[[float], None]
) -> Counter[str]:
    """Do all of it, each fault on time; returns how many of each kind, when the last one is over.

    `tell` is called about once a second with the seconds since the start.
    """
    began = time.monotonic()
    ended = threading.Event()

    def say() -> None:
        while not ended.wait(1):
            tell(time.monotonic() - began)

    voice = threading.Thread(target=say, name="voice")
    voice.start()
    try:
        with ThreadPoolExecutor(thread_name_prefix="fault") as pool:
            running = []
            for each in planned:
                time.sleep(max(0.0, began + each.at_s - time.monotonic()))
                running.append(pool.submit(each.fault.apply, mill, Random(each.seed)))
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        for fault in running:
            fault.result()
    finally:
        ended.set()
        voice.join()
    return Counter(each.fault.name for each in planned)
