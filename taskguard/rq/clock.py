"""RQ's job timeout. It is for the body: while the job waits for its key, this clock is stopped."""

from __future__ import annotations

import signal
from typing import Any

from rq.timeouts import BaseDeathPenalty

LONGEST_WAIT = 25.0
"""Seconds that a job may wait in its horse. Its worker counts the timeout from the fork. Half a minute past the timeout
its heartbeats come too late, and RQ treats the job as abandoned."""


class JobClock:
    def __init__(self, *, is_own: bool = True) -> None:
        self._is_own = is_own
        """False if the timeout belongs to another job, whose body runs this one synchronously."""
        self._stopped: Any = None

    def stop(self) -> bool:
        """Whether the clock is stopped now. Only a timeout by SIGALRM can be stopped."""
        if self._stopped is None:
            is_found = _ALARM and self._is_own
            penalty = getattr(signal.getsignal(signal.SIGALRM), "__self__", None) if is_found else None
            if not isinstance(penalty, BaseDeathPenalty):
                return False
            penalty.cancel_death_penalty()  # type: ignore[no-untyped-call]
            self._stopped = penalty
        return True

    def start(self) -> None:
        """Restart the timeout in full if it was stopped, unless another alarm was set meanwhile, as for a shutdown."""
        if self._stopped is not None:
            if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
                self._stopped.setup_death_penalty()
            self._stopped = None


_ALARM = hasattr(signal, "SIGALRM")
