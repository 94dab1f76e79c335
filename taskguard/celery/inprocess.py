"""Pools that run bodies in the worker's own process: what the worker's parent has of a job is found by its attempt."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

settlements: WeakValueDictionary[str, Any] = WeakValueDictionary()
bodies: set[str] = set()
"""The attempts whose bodies are at work in this very process."""
