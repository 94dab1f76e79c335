"""How fast the demo runs. The workers read it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    calls: int = 500
    rq_calls: int = 50
    lease: float
    """Seconds without a renewal after which a worker counts as dead."""
    redelivery: float
    """Seconds after which the third act redelivers an unacknowledged message."""
    ticks: int
    """Number of slots that the fourth act counts, one per second."""
    breath: float
    """Seconds to pause for the reader after an event."""


FULL = Pace(lease=4.0, redelivery=5.0, ticks=8, breath=2.5)
FAST = Pace(lease=1.5, redelivery=2.0, ticks=3, breath=0.0)
