"""A process in a storm of signals, whose handler raises wherever it hits `hold` or `run`; it prints what it has seen.

python -m tests.guard.storm URL hold|run kept|dropped SIGNALS SECONDS

In each round a key of its own is held, or run, and up to SIGNALS signals come at a random moment, one shortly after the
other. The exceptions are kept, with their tracebacks and all frames in them, or dropped. The storm lasts for SECONDS,
and longer on a slow machine: until ENOUGH rounds were torn.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import random
import signal
import statistics
import sys
import time
from collections import Counter, deque
from types import CodeType, FrameType
from typing import Any
from uuid import uuid4

from taskguard import Guard, TaskguardError, current_fence
from tests.storms import came_of
from tests.waiting import wait_until

LEASE = 1.0
ENOUGH = 50
"""Rounds that a storm has to tear."""
GUST = 30e-6
"""Seconds between signals that come together, at most."""


class RaisedBySignal(Exception):  # noqa: N818 - it is no error
    pass


class Storm:
    def __init__(self, signals: int) -> None:
        self.signals = signals
        self.left = 0
        signal.signal(signal.SIGALRM, self._raise)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.left > 0 and _is_within(Rounds.one.__code__, frame):
            self.left -= 1
            if self.left:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, GUST))
            raise RaisedBySignal

    def begin(self, longest: float) -> None:
        self.left = random.randint(1, self.signals)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, longest))


def _is_within(code: CodeType, frame: FrameType | None) -> bool:
    """Not in the lines that make the storm."""
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


class Rounds:
    def __init__(self, guard: Guard, verb: str) -> None:
        self.guard = guard
        self.verb = verb
        self.ran: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()

    def one(self, key: str) -> None:
        if self.verb == "hold":
            with self.guard.hold(key, lease=LEASE, keep_for=60):
                self.ran[key] += 1
            return

        def body() -> str:
            self.ran[key] += 1
            return key

        assert self.guard.run(key, body, keep_for=600, lease=LEASE) == key
        self.returned[key] += 1

    def length(self) -> float:
        """How long a round takes. The median: some wait for a processor, and the first one makes the connection."""
        lengths = []
        for number in range(30):
            started = time.perf_counter()
            self.one(f"calm {number}")
            lengths.append(time.perf_counter() - started)
        return statistics.median(lengths)


def main(url: str, verb: str, fate: str, signals: str, seconds: str) -> dict[str, Any]:
    faulthandler.dump_traceback_later(float(seconds) + 75, exit=True)
    logging.disable(logging.CRITICAL)
    guard = Guard(url, namespace=uuid4().hex, patience=10, listeners=[], history=False)
    rounds, storm = Rounds(guard, verb), Storm(int(signals))
    # Each may keep a connection that was just being made, and a server of PostgreSQL has a hundred.
    kept: deque[BaseException] = deque(maxlen=40 if url.startswith("postgresql") else None)
    longest, number = 1.3 * rounds.length(), 0
    ends, errors = Counter[str](), Counter[str]()
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until or (ends["torn"] < ENOUGH and not errors):
        number += 1
        try:
            try:
                storm.begin(longest)
                rounds.one(f"key {number}")
            finally:
                storm.left = 0
                signal.setitimer(signal.ITIMER_REAL, 0)
            ends["undisturbed"] += 1
        except TaskguardError as error:
            errors[str(error)] += 1
        except Exception as error:
            if not came_of(RaisedBySignal, error):
                raise
            ends["torn"] += 1
            if fate == "kept":
                kept.append(error)
    if fate == "dropped":
        gc.collect()
    left = current_fence()
    wait_until(lambda: not _held(guard), timeout=30 * LEASE, what="a lease is held though nobody is inside")
    if verb == "run":
        # What was returned to its caller had reached the store: it is not run again.
        for key in list(rounds.returned):
            guard.run(key, lambda: "run again", keep_for=600)
    return {
        "rounds": number,
        "ends": ends,
        "errors": errors,
        "left current": left is not None,
        "renewed": len(guard.heartbeat._all()),
        "twice": [key for key, times in rounds.ran.items() if times > 1],
    }


def _held(guard: Guard) -> list[str]:
    return [entry.key for entry in guard.store.scan("key ") if entry.state == "running" and entry.remaining > 0]


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
