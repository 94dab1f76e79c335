"""A module that takes its time to be imported, and a callback that does."""

from __future__ import annotations

import os
import time
from typing import Any

from taskguard.rq import singleton_task
from tests.rq import bodies

SLOW = "TASKGUARD_TEST_SLOW"

if os.environ.get(SLOW) and not bodies.noted("import"):
    bodies.note("import")
    time.sleep(3)


@singleton_task(key="key", lease=30)
def slow(key: str) -> str:
    with bodies.working(key):
        return key


def told_slowly(job: Any, connection: Any, *args: Any) -> None:
    bodies.note("told")
    time.sleep(30)
