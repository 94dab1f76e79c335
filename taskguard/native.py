"""Threads and locks of the operating system, also where gevent has put greenlets in their place.

Leases must be renewed while a greenlet computes without ever yielding, so renewal needs a thread that the hub does
not schedule, and what that thread shares must be locked by a lock that works between threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any


@cache  # what it was does not change, whenever gevent patches
def original(module: str, name: str) -> Any:
    """The function as it was before gevent patched it."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original(module, name)
    return getattr(__import__(module), name)


def patched() -> bool:
    """Whether gevent's greenlets stand for threads in this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def allocate_lock() -> Any:
    """A lock between threads. Hold it only over code that never yields to a hub."""
    return original("_thread", "allocate_lock")()


def allocate_rlock() -> Any:
    """As `allocate_lock`, for a thread that may come to it again."""
    return original("_thread", "RLock")()


def thread_local() -> Any:
    """What each thread of the operating system has attributes of its own in."""
    return original("_thread", "_local")()


def start_thread(function: Callable[[], None]) -> None:
    """Run *function* in a daemon thread of the operating system."""
    original("_thread", "start_new_thread")(function, ())


def get_ident() -> int:
    return int(original("_thread", "get_ident")())
