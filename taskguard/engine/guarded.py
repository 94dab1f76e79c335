"""What a function was decorated with: how its calls are told apart, and what can be done about a key by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskguard.engine.envelope import Envelope
from taskguard.errors import ConfigurationError
from taskguard.guard import Guard
from taskguard.keys import KeyMaker
from taskguard.places import place_of, run_of
from taskguard.policy import Policy
from taskguard.store import Entry

_NOT_YET = ("replace_queued", "cancel_running")


class GuardedFunction:
    """`.taskguard` of a guarded task or function. A queue's own kind says where its guard and its settings are."""

    name: str
    """Under which its queue finds it."""
    shows_arguments = False
    """Whether the history has the values of each call."""

    policy: Policy
    keys: KeyMaker

    @property
    def own_guard(self) -> Guard:
        raise NotImplementedError

    # -- one call --------------------------------------------------------------------------------------------------

    def identified(self, envelope: Envelope, args: Any, kwargs: Any) -> Envelope:
        """With its key, unless it was given one when the call was made.

        Raises TypeError, as the call itself would, if the arguments do not fit.
        """
        if envelope.key:
            return envelope
        given = envelope.idempotency_key
        # The payload is what tells two calls of one key apart: the function, and all arguments.
        if given:
            key = self.keys.explicit(given)
            return envelope._replace(key=key, payload=f"{self.name}:{self.keys.payload(args, kwargs)}")
        key = self.keys(args, kwargs)
        if self.policy.key is None and self.policy.key_space is None:
            return envelope._replace(key=key)  # which says it all
        return envelope._replace(key=key, payload=f"{self.name}:{self.keys.likeness(args, kwargs)}")

    def arguments(self, args: Any, kwargs: Any) -> str:
        """What the history has of the values of a call, where it shows them."""
        return self.keys.shown(args, kwargs)

    # -- by hand ---------------------------------------------------------------------------------------------------

    def key(self, *args: Any, **kwargs: Any) -> str:
        """The key of the call with these arguments; what the key does not name may be left out."""
        return self.keys.by_hand(args, kwargs)

    def get(self, *args: Any, **kwargs: Any) -> Entry | None:
        """The entry of the call with these arguments: the running job's, else the queued one's."""
        found = None
        for name in self._entries(args, kwargs):
            found = self.own_guard.store.get(name) or found
            if found is not None and found.state in ("queued", "running") and found.remaining > 0:
                return found
        return found

    def release(self, *args: Any, **kwargs: Any) -> bool:
        """Free the key of the call with these arguments, by hand; its holder learns that it lost it."""
        freed = [self.own_guard.free(name) for name in self._entries(args, kwargs)]
        return any(freed)

    def _entries(self, args: Any, kwargs: Any) -> list[str]:
        key, policy = self.key(*args, **kwargs), self.policy
        names = {run_of(policy, key, ""), place_of(policy, key)} if policy.hold != "queued" else {key}
        return sorted(names - {""})


def supported(policy: Policy, queue: str) -> Policy:
    """The policy; ConfigurationError for what no queue supports yet."""
    for conflict in (policy.on_conflict.enqueue, policy.on_conflict.run):
        if conflict in _NOT_YET:
            raise ConfigurationError(
                f'on_conflict="{conflict}" is not yet supported for {queue}; write "skip", "raise", "wait" or '
                '"run_once_more"'
            )
    if policy.debounce is not None:
        raise ConfigurationError(f"debounce is not yet supported for {queue}; leave it out")
    return policy


def part_of(options: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}
