"""Pools that run bodies in the worker's own process: the request that the worker made is found by its attempt."""

from __future__ import annotations

import weakref
from typing import Any

_requests: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_bodies: set[str] = set()


def remember(attempt: str, request: Any) -> None:
    _requests[attempt] = request


def runs_here(attempt: str) -> bool:
    """Whether a body of that attempt is at work in this very process."""
    return attempt in _bodies


class BodyInThisProcess:
    """A body is at work. When it has unwound, the request is told, if it is in this process too."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: str) -> None:
        self._attempt = attempt

    def __enter__(self) -> None:
        _bodies.add(self._attempt)

    def __exit__(self, *_: object) -> None:
        _bodies.discard(self._attempt)
        request = _requests.get(self._attempt)
        if request is not None:
            request.body_has_unwound()
