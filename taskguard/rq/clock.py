"""The time that RQ gives a job. It is the body's: while the job waits for its turn, the clock stands still."""

from __future__ import annotations

import signal
from typing import Any

from rq.timeouts import BaseDeathPenalty

LONGEST_WAIT = 25.0
"""Seconds that a job may wait in its horse. Its worker counts the time from the fork: half a minute beyond the job's
timeout its heartbeats come too late, and RQ takes the job for abandoned."""


class JobClock:
    def __init__(self, *, is_own: bool = True) -> None:
        self._is_own = is_own
        """Else the clock that runs is that of another job, whose body has this one run at once."""
        self._stopped: Any = None

    def stop(self) -> bool:
        """Whether it stands still now. A clock that is no alarm of the operating system cannot be stopped."""
        if self._stopped is None:
            is_found = _ALARM and self._is_own
            penalty = getattr(signal.getsignal(signal.SIGALRM), "__self__", None) if is_found else None
            if not isinstance(penalty, BaseDeathPenalty):
                return False
            penalty.cancel_death_penalty()  # type: ignore[no-untyped-call]
            self._stopped = penalty
        return True

    def start(self) -> None:
        """From the beginning, if it was stopped; and if no other alarm was set meanwhile, as before a shutdown."""
        if self._stopped is not None:
            if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
                self._stopped.setup_death_penalty()
            self._stopped = None


_ALARM = hasattr(signal, "SIGALRM")
