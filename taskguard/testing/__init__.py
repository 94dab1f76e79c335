"""Helpers to test guarded code, and to write a store. Imports no test runner, no Celery and no RQ.

A name's module is imported when the name is first used. The fixtures are in `taskguard.testing.pytest`.
"""

from typing import TYPE_CHECKING

from taskguard.lazily import lazily

if TYPE_CHECKING:
    from taskguard.runtime.switch import unguarded
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "taskguard.runtime.switch": "unguarded",
        "taskguard.testing.asserts": "assert_ran_once assert_skipped",
        "taskguard.testing.clock": "FakeClock",
        "taskguard.testing.contract": "StoreContract",
        "taskguard.testing.crashes": "assert_survives_crashes assert_survives_pauses",
        "taskguard.testing.histories": "HistoryContract",
        "taskguard.testing.swap": "on_store",
        "taskguard.testing.watched": "WatchedStore",
    },
)
