"""How long things take in the demo. The workers read it too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    calls: int = 500
    rq_calls: int = 50
    lease: float
    """Seconds of silence after which a worker counts as dead."""
    redelivery: float
    """Seconds after which a message that nobody acknowledged is delivered again in the third act."""
    ticks: int
    """How many slots of the schedule are watched, one a second."""
    breath: float
    """A pause for the reader where something has happened."""


FULL = Pace(lease=4.0, redelivery=5.0, ticks=8, breath=2.5)
FAST = Pace(lease=1.5, redelivery=2.0, ticks=3, breath=0.0)
