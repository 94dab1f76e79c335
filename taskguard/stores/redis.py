"""Entries in Redis 6.2 and later, or Valkey: each verb is one script, and one round trip.

An entry lives at `namespace:{key}` and a job's receipt at `namespace:{key}:owner`. They share one hash tag, so a verb
touches one slot only, and a script names every key that it touches in KEYS.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis

from taskguard.errors import ConfigurationError
from taskguard.protocol.names import check_namespace
from taskguard.protocol.store import (
    MICROS,
    Claim,
    Claimant,
    Completed,
    Ending,
    Entry,
    Guarantees,
    Held,
    Lease,
    micros,
    token_of,
)
from taskguard.runtime.evictions import Eviction
from taskguard.stores import safe_url
from taskguard.stores.histories.redis import RedisHistory
from taskguard.stores.redis_errors import ForeignValueError
from taskguard.stores.redis_wire import Connections, Lent, Script, Wire

SCAN_PAGE = 500

_logger = logging.getLogger("taskguard")

_CLAIM: Final = Script("claim_new", "entry", "claim")
_RENEW: Final = Script("entry", "renew")
_REQUEUE: Final = Script("entry", "requeue")
_COMPLETE: Final = Script("entry", "complete")
_RELEASE: Final = Script("entry", "release")
_GET: Final = Script("entry", "get")
_FORGET: Final = Script("entry", "forget")


def from_url(url: str, *, namespace: str) -> RedisStore:
    """`redis://`, `rediss://` (TLS), `unix://`, or `valkey://`; `?timeout=` is ours, other options are redis-py's."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    scheme = {"valkey": "redis", "valkeys": "rediss", "redis+socket": "unix"}.get(parts.scheme, parts.scheme)
    try:
        timeout = float(options.pop("timeout", "5"))
        if not 0 < timeout < 3600:
            raise ValueError
        pool = redis.ConnectionPool.from_url(
            f"{scheme}://{parts.netloc}{parts.path}?{urlencode(options)}",
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
        )
        Connections(pool).make()
    except (ValueError, TypeError, redis.RedisError) as error:
        # The driver's message may quote a part of the password; the name of an option is safe to show.
        option = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        problem = f"has an option that redis-py does not know, {option[1]}" if option else "is not a valid Redis URL"
        raise ConfigurationError(
            f"{safe_url(url)} {problem}; write redis://[:password@]host:port/db[?timeout=seconds] or "
            "unix:///path/to/socket, and inside a password %40 for @, %2F for /, %3F for ?, %23 for #"
        ) from None
    return RedisStore(Connections(pool), namespace=namespace, name=safe_url(url))


class RedisStore:
    """One Redis or Valkey server (or a primary with replicas: see the guarantees)."""

    guarantees = Guarantees(
        survives_restart="if configured",
        survives_failover="no",
        linearizable=False,
        clock="the server's",
        note="restart: appendonly yes. Failover: a replica may lack the last writes, so two holders can overlap; "
        "their tokens still rise, and a fenced resource accepts only the newer holder's writes",
    )

    def __init__(self, client: redis.Redis | Connections, *, namespace: str = "taskguard", name: str = "") -> None:
        check_namespace(namespace)
        if "{" in namespace or "}" in namespace:
            raise ConfigurationError(
                f"namespace={namespace!r} must not contain braces, which mark the hash tag of a key; "
                "write a name such as 'billing'"
            )
        if not isinstance(client, (redis.Redis, Connections)):
            raise ConfigurationError(f"RedisStore takes a redis.Redis client, not {type(client).__name__}")
        self._namespace = namespace
        self._name = name or "RedisStore"
        self._has_skipped = False
        if isinstance(client, redis.Redis):
            client = Lent(client.connection_pool)
        self.wire = Wire(client, repr(self), namespace)
        self.eviction = _eviction_of(client.pool)
        self.history = RedisHistory(self.wire, namespace)

    def __repr__(self) -> str:
        return f"RedisStore({self._name}, namespace={self._namespace!r})"

    # -- verbs ---------------------------------------------------------------------------------------------------

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        entry = self._entry_key(claim.key)
        keys = [entry, f"{entry}:{claim.owner}"]
        durations = [micros(claim.lease), micros(claim.keep_for)]
        args: list[Any] = [claim.owner, claim.attempt, claim.state, *durations, claim.label, claim.where]
        if claim.join:
            keys.append(f"{entry}:{claim.join}")
        args += _rare(claim)
        reply = self.wire.call(_CLAIM, keys, args, meanwhile=claim.meanwhile)
        if isinstance(reply, int):
            return _leased(claim, reply, int(claim.state == "running"))
        if isinstance(reply, bytes):
            token, starts, took_over = map(int, reply.split())
            return _leased(claim, token, starts, bool(took_over))
        return _held(claim.key, reply) if reply[0] == b"held" else _completed(claim.key, reply)

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        calls = [
            ([self._entry_key(lease.key)], [lease.owner, lease.attempt, lease.token, micros(seconds)])
            for lease, seconds in leases
        ]
        return [reply == 1 for reply in self.wire.call_many(_RENEW, calls, aside=True)]

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        args = [micros(copy_for), int(keep_starts), 0, copy, *_who(claimant), micros(seconds)]
        return bool(self.wire.call(_REQUEUE, self._keys(claimant), args) == b"1")

    def mark(self, published: Sequence[tuple[Claimant, float]], /, *, copy_for: float) -> list[bool]:
        keys: list[str] = []
        args: list[Any] = [micros(copy_for), 1, 1, ""]
        for claimant, seconds in published:
            keys += self._keys(claimant)
            args += [*_who(claimant), micros(seconds)]
        # One call for all: starting a script is most of its cost. (On one server only; the keys are in many slots.)
        reply = self.wire.call(_REQUEUE, keys, args, aside=True) if keys else b""
        return [digit == _ONE for digit in reply]

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        return bool(self.wire.call(_COMPLETE, self._keys(claimant), [*_who(claimant), *_how(ending)]) == 1)

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        args = [*_who(claimant), *_how(ending), int(anyway)]
        return bool(self.wire.call(_RELEASE, self._keys(claimant), args) == 1)

    def get(self, key: str, /) -> Entry | None:
        reply = self.wire.call(_GET, [self._entry_key(key)], [])
        return _entry(key, reply) if reply else None

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        pattern = f"{_literal(self._namespace)}:{{{_literal(_tag(prefix))}*}}"
        cursor = b"0"
        while True:
            cursor, found = self.wire.execute(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCAN_PAGE)
            names = [name for name in found if name.index(b"}") == len(name) - 1]  # a receipt continues after the brace
            keys = {name: self._key_of(name) for name in names}
            ours = [name for name in names if keys[name] is not None]
            for name, reply in zip(ours, self._look_at(ours), strict=True):
                if reply:
                    yield _entry(keys[name] or "", reply)
            if int(cursor) == 0:
                return

    def _look_at(self, names: list[bytes]) -> list[Any]:
        """The entry under each name. A foreign value counts as nothing: it must not hide the other entries."""
        try:
            return self.wire.call_many(_GET, [([name], []) for name in names])
        except ForeignValueError as error:
            if len(names) > 1:
                half = len(names) // 2
                return self._look_at(names[:half]) + self._look_at(names[half:])
            self._skip(names[0], error.problem)
            return [None]

    def _skip(self, name: bytes, problem: str) -> None:
        level = logging.DEBUG if self._has_skipped else logging.WARNING
        self._has_skipped = True
        _logger.log(level, "%r skips the key %s: %s", self, name.decode(errors="backslashreplace"), problem)

    def forget(self, key: str, /, token: int = 0) -> bool:
        return bool(self.wire.call(_FORGET, [self._entry_key(key)], [token]) == 1)

    def close(self) -> None:
        self.wire.close()

    def execute(self, *command: Any) -> Any:
        """Run one command of the server, such as INFO, for diagnosis."""
        return self.wire.execute(*command)

    def eviction_policy(self) -> str:
        """The server's eviction policy; empty if it does not evict."""
        # INFO and not CONFIG, which hosted servers deny. All our keys expire, so volatile-* evicts them too.
        lines = self.execute(b"INFO", b"memory").decode().splitlines()
        facts = dict(line.partition(":")[::2] for line in lines)
        policy: str = facts.get("maxmemory_policy", "noeviction")
        return "" if policy == "noeviction" or facts.get("maxmemory") == "0" else policy

    # -- keys ----------------------------------------------------------------------------------------------------

    def _entry_key(self, key: str) -> str:
        return f"{self._namespace}:{{{_tag(key)}}}"

    def _key_of(self, name: bytes) -> str | None:
        """The key whose entry has that name; None if it is not the name of an entry."""
        key = unquote(name.decode(errors="replace").removeprefix(f"{self._namespace}:{{").removesuffix("}"))
        if self._entry_key(key).encode() == name:
            return key
        self._skip(name, "it is not the name of an entry")
        return None

    def _keys(self, claimant: Claimant) -> list[str]:
        entry = self._entry_key(claimant.key)
        return [entry, f"{entry}:{claimant.owner}"]


def _eviction_of(pool: redis.ConnectionPool) -> Eviction:
    """What this process knows of the pool's server, whichever store asked."""
    server = tuple(pool.connection_kwargs.get(name) for name in ("host", "port", "path"))
    known = any(part is not None for part in server)  # not known if a sentinel names the server
    return _evictions.setdefault(server, Eviction()) if known else Eviction()


_evictions: dict[tuple[Any, ...], Eviction] = {}


def _who(claimant: Claimant) -> list[Any]:
    return [claimant.owner, claimant.attempt, token_of(claimant)]


def _how(ending: Ending) -> list[Any]:
    outcome = ending.outcome
    return [
        ending.how,
        micros(ending.keep_for),
        int(outcome is not None),
        outcome or b"",
        micros(ending.linger),
        int(ending.answered),
        micros(ending.repeat_for),
    ]


def _rare(claim: Claim) -> list[Any]:
    """Fields that most claims leave at their defaults. Trailing defaults are not sent."""
    rare = [
        micros(claim.copy_for),
        claim.copy,
        claim.payload,
        int(claim.skip),
        claim.reuse,
        claim.join,
        claim.floor,
        int(claim.replace_queued),
        claim.stamp,
    ]
    sent = len(rare)
    while sent and rare[sent - 1] == _USUAL[sent - 1]:
        sent -= 1
    return rare[:sent]


_ONE = ord("1")
_USUAL = [0, "", "", 0, "nothing", "", 0, 0, ""]


def _leased(claim: Claim, token: int, starts: int, took_over: bool = False) -> Lease:
    return Lease(
        claim.key,
        claim.owner,
        claim.attempt,
        token=token,
        state=claim.state,
        starts=starts,
        took_over=took_over,
    )


def _held(key: str, reply: Any) -> Held:
    _, owner, attempt, token, state, since, remaining, payload, publish, stamp = reply
    return Held(
        key,
        owner.decode(),
        attempt.decode(),
        token=token,
        state=state.decode(),
        since=since / MICROS,
        remaining=remaining / MICROS,
        payload=payload.decode(),
        publish=bool(publish),
        stamp=stamp.decode(),
    )


def _completed(key: str, reply: Any) -> Completed:
    _, owner, how, token, at, outcome, twin, answered, payload = reply
    return Completed(
        key=key,
        owner=owner.decode(),
        how=how.decode(),
        token=token,
        at=at / MICROS,
        outcome=outcome,
        twin=twin.decode(),
        answered=bool(answered),
        payload=payload.decode(),
    )


def _entry(key: str, reply: Any) -> Entry:
    state, owner, attempt, token, since, remaining, starts, copies, payload, how, outcome, unended, label, where = reply
    return Entry(
        key=key,
        state=state.decode(),
        owner=owner.decode(),
        attempt=attempt.decode(),
        token=token,
        since=since / MICROS,
        remaining=remaining / MICROS,
        starts=starts,
        copies=copies,
        payload=payload.decode(),
        how=how.decode() if how else None,
        outcome=outcome,
        unended=tuple((owner.decode(), payload.decode()) for owner, payload in unended),
        label=label.decode(),
        where=where.decode(),
    )


def _tag(key: str) -> str:
    """The key, escaped for a hash tag, which ends at the first closing brace."""
    return key.replace("%", "%25").replace("}", "%7D")


def _literal(text: str) -> str:
    """The text, escaped so that it matches only itself in a SCAN pattern."""
    return "".join(f"\\{letter}" if letter in "\\*?[]^" else letter for letter in text)
