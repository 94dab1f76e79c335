"""Clocks that stand still until they are told otherwise."""

from __future__ import annotations

import mmap
import struct
import time

BEGINNING = 1_700_000_000_000_000


class FakeClock:
    """Microseconds, for a store that takes its clock from outside; moves on by one at each look, as time does."""

    def __init__(self) -> None:
        self._now = BEGINNING

    def __call__(self) -> int:
        self._now += 1
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += round(seconds * 1_000_000)


class SharedClock:
    """The same, from now on, for this process and those that are forked from it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)
        self._set(time.time_ns() // 1000)

    def __call__(self) -> int:
        return self._set(self._now() + 1)

    def advance(self, seconds: float) -> None:
        self._set(self._now() + round(seconds * 1_000_000))

    def _now(self) -> int:
        (now,) = struct.unpack("q", self._memory[:])
        return int(now)

    def _set(self, now: int) -> int:
        self._memory[:] = struct.pack("q", now)
        return now
