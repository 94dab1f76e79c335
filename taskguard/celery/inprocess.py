"""For pools that run bodies in the worker's own process: finds the settlement of a job by its attempt."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

settlements: WeakValueDictionary[str, Any] = WeakValueDictionary()
bodies: set[str] = set()
"""The attempts whose bodies run in this process."""
