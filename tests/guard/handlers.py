"""A process whose signal handler, or finalizer, uses the guard itself, wherever it comes; it prints how often it did.

python -m tests.guard.handlers URL handler|finalizer SECONDS

It goes on for SECONDS, and longer on a slow machine: until it did so ENOUGH times.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from uuid import uuid4

from taskguard import Guard, StoreError
from taskguard.protocol.store import Claimant
from taskguard.runtime.confirmations import Confirmations

ENOUGH = 20


class Cycle:
    """What only the collector finds, whenever it comes, and in whichever thread."""

    def __init__(self, use: Uses) -> None:
        self._myself = self
        self._use = use

    def __del__(self) -> None:
        self._use()


class Uses:
    def __init__(self, url: str) -> None:
        self.guard = Guard(url, namespace=uuid4().hex, listeners=[])
        self.confirmations = Confirmations(self.guard.store)
        self.count = 0
        self.within = 0

    def __call__(self) -> None:
        if self.within > 3:
            return
        self.within += 1
        try:
            self.once()
        except StoreError:  # a store may refuse, at once, what it cannot do within another of its steps
            self.count += 1
        self.within -= 1

    def once(self) -> None:
        key = uuid4().hex
        with self.guard.hold(key, lease=5):
            self.count += 1
        self.confirmations.add(Claimant(key, key, key), 60, 60)


def main(url: str, how: str, seconds: str) -> None:
    faulthandler.dump_traceback_later(float(seconds) + 75, exit=True)
    logging.disable(logging.CRITICAL)
    uses, rounds = Uses(url), 0
    length = statistics.median(_length(uses.once) for _ in range(9))  # not the first one's, which connects
    uses.count = 0
    if how == "handler":
        signal.signal(signal.SIGALRM, lambda *_: uses())
    else:
        gc.set_threshold(50)
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until or uses.count - rounds < ENOUGH:
        rounds += 1
        if how == "handler":
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, 1.5 * length))
        else:
            Cycle(uses)
        uses.once()
        signal.setitimer(signal.ITIMER_REAL, 0)
        if rounds % 20 == 0:
            uses.guard.recorder.flush()  # type: ignore[union-attr]
    gc.set_threshold(700)
    print(rounds, uses.count - rounds)


def _length(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(*sys.argv[1:])
