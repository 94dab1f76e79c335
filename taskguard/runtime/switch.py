"""The off switch, for tests: calls are published and bodies run as if nothing were guarded.

`TASKGUARD_OFF=1` switches the guard off for a whole process, `unguarded()` for a block of a test. No store is used. A
body with a fence parameter still receives a fence: see `taskguard.engine.unguarded`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from taskguard.errors import ConfigurationError

VARIABLE = "TASKGUARD_OFF"

_logger = logging.getLogger("taskguard")
_blocks = 0
"""How many blocks have switched it off. Per process, not per thread: a test's worker may be another thread."""
_has_warned = False


def is_off() -> bool:
    global _has_warned
    if _blocks > 0:
        return True
    value = os.environ.get(VARIABLE, "")
    if value in ("", "0"):
        return False
    if value != "1":
        raise ConfigurationError(f"{VARIABLE}={value!r} is not known; write 1 to guard nothing, 0 to guard as usual")
    if not _has_warned:
        _has_warned = True
        _logger.warning("%s=1: this process guards nothing; set it in tests only", VARIABLE)
    return True


@contextmanager
def unguarded() -> Iterator[None]:
    """Guard nothing in this process while the block runs."""
    global _blocks
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1
