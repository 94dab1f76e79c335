"""For those who test with taskguard, or write a store for it."""

from taskguard.testing.contract import StoreContract

__all__ = ["StoreContract"]
