"""A server that evicts entries when its memory is short: locks and receipts vanish, and finished work runs again.

A process asks each server once whether it evicts, never as part of each claim. A forked process knows what its parent
knew: the work horse that RQ forks for each job does not ask.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.runtime.clocks import since_boot

if TYPE_CHECKING:
    from mmap import mmap

    from taskguard.protocol.store import Claimant

OnEvictingStore: TypeAlias = Literal["warn", "refuse", "ignore"]
PROBLEM = "when memory is short, locks and records vanish, and work runs twice"
WAY_OUT = "set maxmemory-policy noeviction, or give taskguard a server of its own"
ASK_AGAIN = 60.0
"""Seconds after which to ask a server again that did not answer whether it evicts."""

_logger = logging.getLogger("taskguard")


def check_on_evicting_store(option: str, value: Any) -> None:
    """Raise ConfigurationError if the setting *option* does not accept *value*."""
    if value not in get_args(OnEvictingStore):
        raise ConfigurationError(f"{option}={value!r} is not known; write warn, refuse or ignore")


class Eviction:
    """What this process knows of one server; a store offers it as `eviction`, beside `eviction_policy()`."""

    def __init__(self) -> None:
        self.policy: str | None = None
        """The eviction policy; empty if the server does not evict, or does not say; None before it was asked."""
        self._said: mmap | None = None

    def learn(self, ask: Callable[[], str]) -> str:
        """The policy; asks the server if it is not known. Raises StoreUnavailableError if the server is unreachable."""
        if self.policy is None:
            self.ask(ask)
        return self.policy or ""

    def ask(self, ask: Callable[[], str]) -> str:
        """Ask the server for its current policy."""
        try:
            self.policy = ask()
        except StoreUnavailableError:
            raise
        except StoreError as error:  # a user may lack the permission
            _logger.debug("cannot find out whether the store evicts: %s", error)
            self.policy = ""
        if self.policy and self._said is None:
            from mmap import mmap  # seldom needed

            self._said = mmap(-1, 1)  # shared with all processes that are forked later
        return self.policy

    def is_to_be_said(self) -> bool:
        """Whether neither this process nor its parents or forked children have reported it yet."""
        said = self._said is None or bool(self._said[0])
        if self._said is not None:
            self._said[0] = 1
        return not said


class Evictions:
    """What a guard does about a store that may evict: refuse every claim, or report it once."""

    def __init__(self, store: Any, chosen: OnEvictingStore) -> None:
        self._store = store
        self._eviction: Eviction | None = getattr(store, "eviction", None) if chosen != "ignore" else None
        """None once there is nothing to report."""
        self._ask_after = float("-inf")
        self.are_refused = chosen == "refuse" and self._eviction is not None

    def refuse(self) -> None:
        """Raise ConfigurationError if the store evicts. If it does not, this never asks again."""
        eviction, ask = self._eviction, self._store.eviction_policy
        if eviction is None:
            return
        # Ask again if it did evict: somebody may have corrected the setting.
        policy = eviction.ask(ask) if eviction.policy else eviction.learn(ask)
        if policy:
            raise ConfigurationError(
                f'{self._store!r} has maxmemory-policy {policy}: {PROBLEM}. on_evicting_store="refuse" refuses every '
                f"claim; {WAY_OUT}"
            )
        self._eviction, self.are_refused = None, False

    def warn(self, report: Callable[..., None], claimant: Claimant) -> None:
        """Report that the store evicts. Call it after the store has answered: an outage has cost enough time."""
        eviction = self._eviction
        if eviction is None or since_boot() < self._ask_after:
            return
        try:
            policy = eviction.learn(self._store.eviction_policy)
        except StoreUnavailableError:
            self._ask_after = since_boot() + ASK_AGAIN
            return
        self._eviction = None
        if policy and eviction.is_to_be_said():
            detail = f"{self._store!r} has maxmemory-policy {policy}: {PROBLEM}; {WAY_OUT}"
            report("store_evicts", claimant, detail=detail)
