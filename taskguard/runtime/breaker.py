"""A circuit breaker for an unavailable store: after a failed request, the next callers fail at once for a while.

It needs no lock: a state is an immutable object, and each change is one assignment. So threads, greenlets,
signal handlers and forked children may use it at any step.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from taskguard.errors import StoreError, StoreUnavailableError
from taskguard.runtime.clocks import since_boot

T = TypeVar("T")

FIRST = 2.0
"""Seconds without requests after a failed one; doubled after each further failure."""
LONGEST = 30.0
PROBE = 2.0
"""Seconds that other calls wait for the probing one. Then another one probes: a signal may have ended the first."""


class _Pause:
    def __init__(self, length: float, until: float, error: StoreUnavailableError) -> None:
        self.length = length
        self.until = until
        self.said = (error.store, error.problem)
        self._asked = count()

    def is_over(self) -> bool:
        """Whether this call may ask the store: one call may probe, and others after PROBE seconds."""
        late = since_boot() - self.until
        return late >= 0 and (next(self._asked) == 0 or late > PROBE)


class Breaker:
    """The breaker of one store in one process; a forked child continues with its parent's state."""

    def __init__(self) -> None:
        self._pause: _Pause | None = None

    def ask(self, question: Callable[[], T]) -> T:
        """Return the store's answer; raise StoreUnavailableError at once if a request failed a moment ago."""
        pause = self._pause
        if pause is not None:
            pause = self._begin_probe(pause)
        try:
            answer = question()
        except StoreUnavailableError as error:
            self._open(pause, error)
            raise
        except StoreError:
            self._pause = None  # the store has answered, with an error
            raise
        if self._pause is not None:
            self._pause = None
        return answer

    def _begin_probe(self, pause: _Pause) -> _Pause:
        if not pause.is_over():
            store, problem = pause.said
            left = max(0.0, pause.until - since_boot())
            raise StoreUnavailableError(store, f"{problem} (it is asked again in {left:.1f} s)")
        mine = self._pause = _Pause(pause.length, since_boot() + PROBE, StoreUnavailableError(*pause.said))
        return mine

    def _open(self, found: _Pause | None, error: StoreUnavailableError) -> None:
        # Counted from what this call found: many that fail together count as one.
        if self._pause is found:
            length = FIRST if found is None else min(LONGEST, 2 * found.length)
            self._pause = _Pause(length, since_boot() + length, error)


_by_address: dict[Any, Breaker] = {}


def breaker_of(address: Any) -> Breaker:
    """That of all who ask the store at that address, in this process."""
    return _by_address.setdefault(address, Breaker())
