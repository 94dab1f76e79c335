"""What a function takes from its caller, and where it wants its fence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from taskguard.keys import takes_fence


@lru_cache(maxsize=1024)
def fence_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that is given the fence: the one annotated `Fence`, else the one named `fence`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin: nothing of ours is asked for
        return None
    for parameter in parameters.values():
        if takes_fence(parameter):
            return parameter.name
    return "fence" if "fence" in parameters else None
