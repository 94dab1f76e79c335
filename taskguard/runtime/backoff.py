"""How long to wait before a retry."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


def pauses(first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> Iterator[float]:
    """Exponential backoff with full jitter, so that many waiters do not retry at the same moment."""
    most = first
    while True:
        yield random.uniform(0, most)
        most = min(longest, most * 2)
