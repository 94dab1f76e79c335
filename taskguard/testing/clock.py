"""Clocks that only move when a test advances them."""

from __future__ import annotations

import mmap
import struct
import time

BEGINNING = 1_700_000_000_000_000


class FakeClock:
    """A clock in microseconds, for a store that takes one; each reading is one later than the last."""

    def __init__(self) -> None:
        self._now = BEGINNING

    def __call__(self) -> int:
        self._now += 1
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += round(seconds * 1_000_000)


class SharedClock:
    """The same, starting now, for this process and its forks."""

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
