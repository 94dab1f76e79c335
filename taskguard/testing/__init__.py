"""For those who test with taskguard, or write a store for it."""

from taskguard.testing.contract import StoreContract
from taskguard.testing.histories import HistoryContract

__all__ = ["HistoryContract", "StoreContract"]
