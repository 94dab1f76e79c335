"""A clock that stands still until it is told otherwise."""

from __future__ import annotations


class FakeClock:
    """Microseconds, for a store that takes its clock from outside; moves on by one at each look, as time does."""

    def __init__(self) -> None:
        self._now = 1_700_000_000_000_000

    def __call__(self) -> int:
        self._now += 1
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += round(seconds * 1_000_000)
