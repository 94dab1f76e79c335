"""A guarded function: how its calls get their keys, and what people can do with a key by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskguard.engine.envelope import Envelope
from taskguard.guard import Guard
from taskguard.keys.maker import KeyMaker
from taskguard.protocol.entry_names import queue_entry_of, run_of
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Entry


class GuardedFunction:
    """`.taskguard` of a guarded task or function. A queue's subclass knows its guard and its settings."""

    name: str
    """The name under which its queue finds it."""
    shows_arguments = False
    """Whether the history records the arguments of each call."""

    policy: Policy
    keys: KeyMaker

    @property
    def has_readable_keys(self) -> bool:
        """Whether the store keeps a readable form of each key."""
        return self.policy.readable_keys

    @property
    def own_guard(self) -> Guard:
        raise NotImplementedError

    @property
    def is_named_in_payloads(self) -> bool:
        """Whether a payload that goes with an idempotency key names the function. Each queue keeps its first format."""
        return True

    # -- one call --------------------------------------------------------------------------------------------------

    def identified(self, envelope: Envelope, args: Any, kwargs: Any) -> Envelope:
        """The envelope with its key, unless the call set one already.

        Raises TypeError, as the call itself would, if the arguments do not fit.
        """
        if envelope.key:
            return envelope
        given = envelope.idempotency_key
        # The payload distinguishes two calls with one key: the function, and all arguments.
        payload = ""
        if given:
            key, label = self.keys.labelled_by(given)
            payload = self.keys.payload(args, kwargs)
            payload = f"{self.name}:{payload}" if self.is_named_in_payloads else payload
        else:
            key, label = self.keys.labelled(args, kwargs)
            if (
                self.policy.key is not None or self.policy.key_space is not None
            ):  # else the key identifies the arguments
                payload = f"{self.name}:{self.keys.likeness(args, kwargs)}"
        return envelope._replace(key=key, label=label if label and self.has_readable_keys else "", payload=payload)

    def arguments(self, args: Any, kwargs: Any) -> str:
        """The arguments of a call, as the history records them."""
        return self.keys.shown(args, kwargs)

    # -- by hand ---------------------------------------------------------------------------------------------------

    def key(self, *args: Any, **kwargs: Any) -> str:
        """The key of the call with these arguments; arguments that are not part of the key may be left out."""
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
        """Release the key of the call with these arguments by hand; its holder loses the lease."""
        freed = [self.own_guard.free(name) for name in self._entries(args, kwargs)]
        return any(freed)

    def _entries(self, args: Any, kwargs: Any) -> list[str]:
        key, policy = self.key(*args, **kwargs), self.policy
        names = {run_of(policy, key, ""), queue_entry_of(policy, key)} if policy.hold != "queued" else {key}
        return sorted(names - {""})


def part_of(options: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names}
