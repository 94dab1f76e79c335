"""taskguard: background work that happens once.

Names are loaded when they are first used, so that a process which only publishes does not pay for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskguard.errors import (
        ConfigurationError,
        DuplicateTaskError,
        EarlierFailureError,
        KeyArgumentError,
        LeaseLostError,
        OutcomeNotKeptError,
        PayloadMismatchError,
        RowCountError,
        StaleFenceError,
        StoreError,
        StoreUnavailableError,
        TaskguardError,
        TooManyStartsError,
        VersionConflictError,
        WaitTimeoutError,
    )
    from taskguard.events import Event
    from taskguard.fence import Fence, current_fence
    from taskguard.guard import Guard
    from taskguard.policy import Debounce
    from taskguard.stores import open_store

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "Debounce",
    "DuplicateTaskError",
    "EarlierFailureError",
    "Event",
    "Fence",
    "Guard",
    "KeyArgumentError",
    "LeaseLostError",
    "OutcomeNotKeptError",
    "PayloadMismatchError",
    "RowCountError",
    "StaleFenceError",
    "StoreError",
    "StoreUnavailableError",
    "TaskguardError",
    "TooManyStartsError",
    "VersionConflictError",
    "WaitTimeoutError",
    "current_fence",
    "open_store",
]

_HOME = {
    "Debounce": "policy",
    "Event": "events",
    "Fence": "fence",
    "Guard": "guard",
    "current_fence": "fence",
    "open_store": "stores",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
