"""Operating system threads and locks, even if gevent has replaced them with greenlets.

Leases must be renewed while a greenlet computes without ever yielding. So renewal needs a thread that the hub does not
schedule, and state that it shares needs a lock that works between threads.

Between any two steps of Python a signal handler or a finalizer may run in the same thread, use the guard itself, and
raise. So shared state is changed by single steps that cannot be interrupted (an assignment, one call of a built-in
container), or under a reentrant lock, taken by `with` and never by `acquire` followed by `try`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any


@cache  # the original does not change, whenever gevent patches
def original(module: str, name: str) -> Any:
    """The function as it was before gevent patched it."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original(module, name)
    return getattr(__import__(module), name)


def patched() -> bool:
    """Whether gevent has replaced threads with greenlets in this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def allocate_lock() -> Any:
    """A lock between threads. Hold it only over code that never yields to a hub."""
    return original("_thread", "allocate_lock")()


def allocate_rlock() -> Any:
    """As `allocate_lock`, but reentrant."""
    return original("_thread", "RLock")()


def thread_local() -> Any:
    """An object with separate attributes for each operating system thread."""
    return original("_thread", "_local")()


def start_thread(function: Callable[..., None], *args: Any) -> None:
    """Run *function* in a daemon thread of the operating system."""
    original("_thread", "start_new_thread")(_run, (function, args))


def at_thread_end(callback: Callable[[], None]) -> bool:
    """Call *callback* in this thread when it ends; False if `start_thread` did not start it.

    For resources of this thread alone, such as connections that wait in its gevent hub.
    """
    callbacks: list[Callable[[], None]] | None = getattr(_of_thread, "at_end", None)
    if callbacks is None:
        return False
    callbacks.append(callback)
    return True


def get_ident() -> int:
    return int(original("_thread", "get_ident")())


_of_thread = original("_thread", "_local")()


def _run(function: Callable[..., None], args: tuple[Any, ...]) -> None:
    callbacks: list[Callable[[], None]] = []
    _of_thread.at_end = callbacks
    try:
        function(*args)
    finally:
        try:
            while callbacks:
                callbacks.pop()()
        finally:
            _destroy_hub()


def _destroy_hub() -> None:
    """A thread that waited for a gevent socket has a hub of its own, which nobody else closes."""
    if "gevent.hub" in sys.modules:
        gevent = sys.modules["gevent"]
        if sys.modules["gevent._hub_local"].get_hub_if_exists() is not None:
            gevent.get_hub().destroy(destroy_loop=True)
