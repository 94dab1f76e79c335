"""Functions that know nothing of the guard, and queues that guard them by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskguard import current_fence
from taskguard.rq import GuardedQueue, GuardedWorker
from tests.rq import bodies


def charge(key: str, gate: str | None = None, value: Any = None, fence: Any = None) -> Any:
    held = current_fence()
    with bodies.working(key, token=held.token if held else 0, given=fence):
        if gate:
            bodies.wait_at(gate)
        return value


def other(key: str) -> Any:
    with bodies.working(key):
        return key


class Shop:
    def charge(self, key: str, value: Any = None) -> Any:
        held = current_fence()
        with bodies.working(key, token=held.token if held else 0):
            return value


class ByName(GuardedQueue):
    taskguard_tasks: Mapping[str, Any] = {
        "tests.rq.named.*charge": {"key": "key", "lease": 3},
        "tests.rq.named.*": {"hold": "running", "enforce": False},
    }


class Elsewhere(GuardedQueue):
    """The same functions, with entries in another namespace."""

    taskguard_tasks: Mapping[str, Any] = {"tests.rq.named.*": {"key": "key", "namespace": "elsewhere"}}


class OwnWorker(GuardedWorker):
    """Knows the names itself, whatever class of queues it is given."""

    queue_class = ByName
