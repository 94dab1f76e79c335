"""Pools that run bodies in the worker's own process: the request that the worker made is found by its attempt."""

from __future__ import annotations

import weakref
from typing import Any

_requests: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def remember(attempt: str, request: Any) -> None:
    _requests[attempt] = request


def settle_in_process(attempt: str) -> None:
    """The body was told to end and has unwound. (A pool of processes has nothing here: there the parent sees to it.)"""
    request = _requests.get(attempt)
    if request is not None:
        request.body_has_unwound()
