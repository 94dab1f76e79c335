"""taskguard: background work that happens once."""

from taskguard.errors import (
    ConfigurationError,
    DuplicateTaskError,
    EarlierFailureError,
    KeyArgumentError,
    LeaseLostError,
    OutcomeNotKeptError,
    PayloadMismatchError,
    StoreError,
    StoreUnavailableError,
    TaskguardError,
    TooManyStartsError,
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
    "StoreError",
    "StoreUnavailableError",
    "TaskguardError",
    "TooManyStartsError",
    "WaitTimeoutError",
    "current_fence",
    "open_store",
]
