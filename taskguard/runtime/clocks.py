"""The clock by which a holder counts its own validity."""

from __future__ import annotations

import time
from functools import partial

DRIFT = 0.01
"""How much faster than ours the store's clock may run."""
SLACK = 0.002
"""Seconds."""


# The monotonic clock stops during suspend, and a laptop that wakes up would still trust its lease.
since_boot = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds on a clock that nobody sets and that runs while the machine sleeps."""
