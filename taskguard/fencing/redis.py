"""Keys of Redis or Valkey behind a fence: one script compares the token and writes.

The high-water mark of a resource, the highest token it has seen, is a small hash in the resource's own slot. The script
raises the mark and writes in one step, so a replica, a snapshot or a replayed log has both or neither.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from types import TracebackType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import redis
from redis.client import Pipeline
from redis.cluster import RedisCluster
from redis.crc import key_slot

from taskguard.errors import ConfigurationError, StaleFenceError
from taskguard.fence import Fence
from taskguard.fencing.commands import READS, Command, Writes, as_bytes, parsed
from taskguard.fencing.slots import beside

__all__ = ["FencedRedis"]

WEEK = 7 * 86400.0
MOST_WORDS = 7000
"""Of one command: Lua passes about eight thousand values at most, and would fail in the middle of the script."""

_SOURCE = files(__package__).joinpath("redis.lua").read_text("utf-8")
_SHA = hashlib.sha1(_SOURCE.encode(), usedforsecurity=False).hexdigest()

_turns: WeakKeyDictionary[Fence, threading.Lock] = WeakKeyDictionary()
"""One lock per fence: the script remembers only the last call of a resource, so the next call waits for its reply."""


class FencedRedis(Writes):
    """A client whose writes are refused with `StaleFenceError` once a newer holder has written.

    Each key is a resource of its own, unless *resource* names one for all. Reads go to the client without a fence.
    A high-water mark expires *keep_for* seconds after the last write. A record of `once` expires after *keep_for* or
    the work's own `keep_for`, whichever is longer.
    """

    def __init__(
        self,
        client: redis.Redis | RedisCluster,
        fence: Fence,
        *,
        resource: str | bytes | None = None,
        keep_for: float = WEEK,
    ) -> None:
        if not isinstance(client, (redis.Redis, RedisCluster)) or isinstance(client, Pipeline):
            raise ConfigurationError(f"FencedRedis takes a redis.Redis or a redis.RedisCluster, not {client!r}")
        if resource is not None and not resource:
            raise ConfigurationError("resource= must be a name that is not empty")
        if not keep_for > 0:
            raise ConfigurationError(f"keep_for must be a positive number of seconds, not {keep_for!r}")
        self.client = client
        self.fence = fence
        self._resource = None if resource is None else as_bytes(resource)
        self._keep = max(1, round(keep_for * 1000))
        self._once = ""
        self._turn = _turns.setdefault(fence, threading.Lock())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in READS:
            return getattr(self.client, name)  # type: ignore[no-any-return]
        return super().__getattr__(name)

    def once(self, name: str) -> FencedRedis:
        """A view of this client whose write happens once for *name* in all runs of the work, like `fence.once`.

        If a run of the work repeats it, nothing is written, and the call returns the first reply. The write and its
        record are one step. The record belongs to the resource: on two resources the write happens twice.
        """
        if not name:
            raise ConfigurationError("once() needs a name that distinguishes this write from others of the same work")
        view = object.__new__(FencedRedis)
        view.__dict__.update(self.__dict__, _once=name)
        return view

    def transaction(self) -> Transaction:
        """Several writes in one step, with one comparison of tokens: `with fenced.transaction() as tx: tx.set(…)`."""
        return Transaction(self)

    def check(self, *keys: str | bytes) -> None:
        """Compare the token and raise the high-water mark of the resource, or of each of *keys*, without a write."""
        if self._resource is None and not keys:
            raise ConfigurationError("check() needs the keys to check, because resource= is not set")
        self._run([], tuple(map(as_bytes, keys)))

    def _take(self, command: Command) -> Any:
        return self._run([command], command.keys)[0]

    def _run(self, commands: Sequence[Command], keys: Sequence[bytes]) -> list[Any]:
        resources = [self._resource] if self._resource is not None else list(dict.fromkeys(keys))
        if not all(resources):
            raise ConfigurationError("a key must not be empty: it names its high-water mark")
        self._check_slots([*resources, *keys])
        for command in commands:
            if len(command.words) > MOST_WORDS:
                raise ConfigurationError(
                    f"{command.words[0]} has {len(command.words)} words, and one step takes at most {MOST_WORDS}; "
                    "nothing was written. Split it into several writes, each with a name of its own for once()"
                )
        ours = [beside(resource, b"mark") for resource in resources]
        remembers = bool(self._once and commands)  # a check alone needs no record
        effects = self.fence._effects
        if remembers:
            key = effects.key  # not the caller's idempotency key, which another task may have too
            place = min(resources)  # not the first: the next run may name them in another order
            ours.append(b"%b:%d:%b" % (beside(place, b"once"), len(key), f"{key}:{self._once}".encode()))
        words = [word for command in commands for word in (len(command.words), *command.words)]
        call = os.urandom(9).hex()
        counts = round(effects.keep_for * 1000) + 1 if remembers else 0
        args = [self.fence.token, len(resources), self._keep, call, counts, effects.owner, *words]
        with self._turn:
            outcome, *replies = self._call([*ours, *dict.fromkeys(keys)], args)
        if outcome in (b"stale", "stale"):
            number, mark = replies
            resource = resources[number - 1].decode(errors="replace")
            raise StaleFenceError(self.fence.key, self.fence.token, resource, int(mark))
        if outcome in (b"failed", "failed"):
            _fail(commands, replies)
        return [parsed(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def _call(self, keys: Sequence[bytes], args: Sequence[Any]) -> Any:
        try:
            return self.client.evalsha(_SHA, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return self.client.eval(_SOURCE, len(keys), *keys, *args)

    def _check_slots(self, names: Sequence[bytes]) -> None:
        if not isinstance(self.client, RedisCluster):
            return
        apart = [name for name in names if key_slot(name) != key_slot(names[0])]
        if apart:
            raise ConfigurationError(
                f"{names[0]!r} and {apart[0]!r} are in different slots of the Cluster, which cannot write both in one "
                "step; use one hash tag, such as account:{42} and log:{42}"
            )


class Transaction(Writes):
    """Collects the writes of a `with` block and runs them together at its end; none if the block raises.

    If a command fails, the commands before it have run, as in MULTI, and those after it do not.
    """

    def __init__(self, fenced: FencedRedis) -> None:
        self._fenced = fenced
        self._commands: list[Command] = []
        self.replies: list[Any] = []
        """The replies of the writes, after the block."""

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._commands:
            keys = [key for command in self._commands for key in command.keys]
            self.replies = self._fenced._run(self._commands, keys)

    def _take(self, command: Command) -> Any:
        self._commands.append(command)
        return self


def _fail(commands: Sequence[Command], replies: list[Any]) -> NoReturn:
    *before, error = replies
    text = error.decode(errors="replace") if isinstance(error, bytes) else str(error)
    if len(commands) > 1:
        text += f" (write {len(before) + 1} of {len(commands)}, {commands[len(before)].words[0]}; "
        text += "the writes before it have run)" if before else "nothing was written)"
    raise redis.exceptions.ResponseError(text)
