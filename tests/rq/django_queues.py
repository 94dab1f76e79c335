"""A queue of a Django project that guards functions by their names too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskguard.rq.django import GuardedDjangoQueue


class ByName(GuardedDjangoQueue):
    taskguard_tasks: Mapping[str, Any] = {"tests.rq.named.*": {"key": "key", "lease": 3}}
