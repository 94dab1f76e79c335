"""A lock as it is often written: look, then set; delete when done; a counter for tokens. The tests must catch it.

`make bite` puts it in the place of a store. It is kept as simple as those it imitates: no step is atomic, nobody checks
who releases, nothing is remembered once the key is gone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from taskguard.errors import StoreUnavailableError
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease, Store
from taskguard.stores import open_store


class NaiveStore:
    guarantees = Guarantees(
        survives_restart="no", survives_failover="no", linearizable=False, clock="the server's", note="do not use"
    )

    def __init__(self, url: str, namespace: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=2)
        self._namespace = namespace

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        name = self._name(claim.key)
        found = self._ask(self._client.get, name)
        if found is not None:
            owner, token = json.loads(found)
            return Held(claim.key, owner, "", token=token, state="running", since=time.time(), remaining=1.0)
        token = self._ask(self._client.incr, f"{self._namespace}:tokens")
        lifetime = max(1, math.ceil(claim.lease * 1000))
        self._ask(self._client.set, name, json.dumps([claim.owner, token]), px=lifetime)
        return Lease(claim.key, claim.owner, claim.attempt, token=token, state=claim.state)

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        for lease, seconds in leases:
            self._ask(self._client.pexpire, self._name(lease.key), round(seconds * 1000))
        return [True] * len(leases)

    def requeue(self, claimant: Claimant, seconds: float, /, **_: Any) -> bool:
        return True

    def mark(self, published: Sequence[tuple[Claimant, float]], /, **_: Any) -> list[bool]:
        return [True] * len(published)

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        return self.forget(claimant.key)

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        return self.forget(claimant.key)

    def get(self, key: str, /) -> Entry | None:
        return None

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        return iter(())

    def forget(self, key: str, /, token: int = 0) -> bool:
        self._ask(self._client.delete, self._name(key))
        return True

    def close(self) -> None:
        self._client.close()

    def _name(self, key: str) -> str:
        return f"{self._namespace}:{key}"

    def _ask(self, command: Any, *args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except redis.RedisError as error:
            raise StoreUnavailableError("naive", str(error)) from error


def open_any(url: str, *, namespace: str = "taskguard") -> Store:
    """Open a store, or the naive lock in its place."""
    if url.startswith("naive+"):
        return NaiveStore(url.removeprefix("naive+"), namespace)
    return open_store(url, namespace=namespace)
