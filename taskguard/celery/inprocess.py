"""Pools that run bodies in the worker's own process: the request that the worker made is found by its attempt."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_requests: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_bodies: set[str] = set()


def remember(attempt: str, request: Any) -> None:
    _requests[attempt] = request


def runs_here(attempt: str) -> bool:
    """Whether a body of that attempt is at work in this very process."""
    return attempt in _bodies


@contextmanager
def body_in_this_process(attempt: str) -> Iterator[None]:
    """A body is at work. When it has unwound, the request is told, if it is in this process too."""
    _bodies.add(attempt)
    try:
        yield
    finally:
        _bodies.discard(attempt)
        request = _requests.get(attempt)
        if request is not None:
            request.body_has_unwound()
