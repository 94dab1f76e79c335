"""For those who test what they guard, or write a store. Imports no test runner, no Celery and no RQ.

Names are loaded when they are first used. The fixtures are in `taskguard.testing.pytest`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskguard.switch import unguarded
    from taskguard.testing.asserts import assert_ran_once, assert_skipped
    from taskguard.testing.clock import FakeClock
    from taskguard.testing.contract import StoreContract
    from taskguard.testing.crashes import assert_survives_crashes, assert_survives_pauses
    from taskguard.testing.histories import HistoryContract
    from taskguard.testing.swap import on_store
    from taskguard.testing.watched import WatchedStore

__all__ = [
    "FakeClock",
    "HistoryContract",
    "StoreContract",
    "WatchedStore",
    "assert_ran_once",
    "assert_skipped",
    "assert_survives_crashes",
    "assert_survives_pauses",
    "on_store",
    "unguarded",
]

_HOME = {
    "FakeClock": "taskguard.testing.clock",
    "HistoryContract": "taskguard.testing.histories",
    "StoreContract": "taskguard.testing.contract",
    "WatchedStore": "taskguard.testing.watched",
    "assert_ran_once": "taskguard.testing.asserts",
    "assert_skipped": "taskguard.testing.asserts",
    "assert_survives_crashes": "taskguard.testing.crashes",
    "assert_survives_pauses": "taskguard.testing.crashes",
    "on_store": "taskguard.testing.swap",
    "unguarded": "taskguard.switch",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
