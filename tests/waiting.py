"""Waiting for a condition, never for a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, timeout: float = 20.0, what: str = "") -> T:
    """The first true value of *condition*; fails after *timeout* seconds."""
    give_up = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {timeout} s: {what or condition}")
        time.sleep(0.01)
