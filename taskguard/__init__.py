"""taskguard: background work that happens once.

Names are loaded when they are first used, so that a process which only publishes does not pay for the rest.
"""

from typing import TYPE_CHECKING

from taskguard.lazily import lazily

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
    from taskguard.stores import open_store

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "taskguard.errors": (
            "ConfigurationError DuplicateTaskError EarlierFailureError KeyArgumentError LeaseLostError "
            "OutcomeNotKeptError PayloadMismatchError RowCountError StaleFenceError StoreError StoreUnavailableError "
            "TaskguardError TooManyStartsError VersionConflictError WaitTimeoutError"
        ),
        "taskguard.events": "Event",
        "taskguard.fence": "Fence current_fence",
        "taskguard.guard": "Guard",
        "taskguard.stores": "open_store",
    },
)
