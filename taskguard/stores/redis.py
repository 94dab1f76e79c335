"""Entries in Redis 6.2 and later, or Valkey: each verb is one script, and one round trip.

An entry lives at `namespace:{key}` and a job's receipt at `namespace:{key}:owner`: one hash tag, so all that a verb
touches is in one slot, and every key that a script touches is named in its KEYS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskguard import native
from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.rules import MICROS, micros, token_of
from taskguard.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease
from taskguard.stores import safe_url

SCAN_PAGE = 500

# What a server says that cannot serve us now and may later; nothing was carried out.
_PASSING = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.TryAgainError,
)
_PASSING_CODES = ("BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE")


class _Script:
    def __init__(self, name: str) -> None:
        folder = files(__package__).joinpath("lua")
        parts = [folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("entry", name)]
        self.source = "".join(parts).encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


_CLAIM: Final = _Script("claim")
_RENEW: Final = _Script("renew")
_REQUEUE: Final = _Script("requeue")
_COMPLETE: Final = _Script("complete")
_RELEASE: Final = _Script("release")
_GET: Final = _Script("get")
_FORGET: Final = _Script("forget")


def from_url(url: str, *, namespace: str) -> RedisStore:
    """`redis://`, `rediss://` (TLS), `unix://`, or `valkey://`; `?timeout=` is ours, other options are redis-py's."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    try:
        timeout = float(options.pop("timeout", "5"))
        scheme = {"valkey": "redis", "valkeys": "rediss", "redis+socket": "unix"}.get(parts.scheme, parts.scheme)
        pool = redis.ConnectionPool.from_url(
            f"{scheme}://{parts.netloc}{parts.path}?{urlencode(options)}",
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            # A blind retry of the driver would hide a lost reply from us; the guard asks again knowingly.
            retry=Retry(NoBackoff(), 0),
        )
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError, redis.RedisError) as error:
        raise ConfigurationError(
            f"{safe_url(url)} cannot be used: {_without_secrets(str(error), parts.password)}; "
            "write redis://[:password@]host:port/db or unix:///path/to/socket"
        ) from None
    return RedisStore(pool, namespace=namespace, name=safe_url(url))


class RedisStore:
    """One Redis or Valkey server (or a primary with replicas: see the guarantees)."""

    guarantees = Guarantees(
        survives_restart="if configured",
        survives_failover="no",
        linearizable=False,
        clock="the server's",
        note="restart: appendonly yes. Failover: a replica may lack the last writes, so two holders can overlap; "
        "their tokens still rise, and the fence decides",
    )

    def __init__(
        self, client: redis.Redis | redis.ConnectionPool, *, namespace: str = "taskguard", name: str = ""
    ) -> None:
        if "{" in namespace or "}" in namespace:
            raise ConfigurationError(f"namespace={namespace!r} must have no braces: they mark the key's hash slot")
        self._pool = client if isinstance(client, redis.ConnectionPool) else client.connection_pool
        self._renewing: dict[int, redis.ConnectionPool] = {}
        self._namespace = namespace
        self._name = name or "RedisStore"

    def __repr__(self) -> str:
        return f"RedisStore({self._name}, namespace={self._namespace!r})"

    # -- verbs ---------------------------------------------------------------------------------------------------

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        entry = self._entry_key(claim.key)
        keys = [entry, f"{entry}:{claim.owner}"]
        args: list[Any] = [claim.owner, claim.attempt, claim.state, micros(claim.lease), micros(claim.keep_for)]
        if claim.join:
            keys.append(f"{entry}:{claim.join}")
        args += _rare(claim)
        reply = self._call(_CLAIM, keys, args)
        if reply[0] == b"lease":
            token, starts, took_over = reply[1:]
            return Lease(
                claim.key,
                claim.owner,
                claim.attempt,
                token=token,
                state=claim.state,
                starts=starts,
                took_over=bool(took_over),
            )
        return _held(claim.key, reply) if reply[0] == b"held" else _completed(claim.key, reply)

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        calls = [
            ([self._entry_key(lease.key)], [lease.owner, lease.attempt, lease.token, micros(seconds)])
            for lease, seconds in leases
        ]
        return [reply == 1 for reply in self._call_many(self._pool_for_renewal(), _RENEW, calls)]

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy: str = "", copy_for: float, keep_starts: bool = False
    ) -> bool:
        args = [*_who(claimant), micros(seconds), copy, micros(copy_for), int(keep_starts)]
        return bool(self._call(_REQUEUE, [self._entry_key(claimant.key)], args) == 1)

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        return bool(self._call(_COMPLETE, self._keys(claimant), [*_who(claimant), *_how(ending)]) == 1)

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        args = [*_who(claimant), *_how(ending), int(anyway)]
        return bool(self._call(_RELEASE, self._keys(claimant), args) == 1)

    def get(self, key: str, /) -> Entry | None:
        reply = self._call(_GET, [self._entry_key(key)], [])
        return _entry(key, reply) if reply else None

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        pattern = f"{_literal(self._namespace)}:{{{_literal(_tag(prefix))}*}}"
        cursor = b"0"
        while True:
            cursor, found = self._execute(self._pool, b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCAN_PAGE)
            keys = [name for name in found if name.index(b"}") == len(name) - 1]  # a receipt goes on after the brace
            replies = self._call_many(self._pool, _GET, [([name], []) for name in keys])
            for name, reply in zip(keys, replies, strict=True):
                if reply:
                    yield _entry(self._key_of(name), reply)
            if int(cursor) == 0:
                return

    def forget(self, key: str, /, token: int = 0) -> bool:
        return bool(self._call(_FORGET, [self._entry_key(key)], [token]) == 1)

    def close(self) -> None:
        self._pool.disconnect()
        for pool in self._renewing.values():
            pool.disconnect()

    # -- keys ----------------------------------------------------------------------------------------------------

    def _entry_key(self, key: str) -> str:
        return f"{self._namespace}:{{{_tag(key)}}}"

    def _key_of(self, name: bytes) -> str:
        return unquote(name.decode().removeprefix(f"{self._namespace}:{{").removesuffix("}"))

    def _keys(self, claimant: Claimant) -> list[str]:
        entry = self._entry_key(claimant.key)
        return [entry, f"{entry}:{claimant.owner}"]

    # -- the wire ------------------------------------------------------------------------------------------------

    def _call(
        self, script: _Script, keys: Sequence[Any], args: Sequence[Any], *, pool: redis.ConnectionPool | None = None
    ) -> Any:
        pool = pool or self._pool
        try:
            return self._execute(pool, b"EVALSHA", script.sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            # The server was restarted, promoted, or told to forget its scripts: EVAL teaches it again.
            return self._execute(pool, b"EVAL", script.source, len(keys), *keys, *args)

    def _execute(self, pool: redis.ConnectionPool, *command: Any) -> Any:
        with self._connection(pool) as connection:
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)

    def _call_many(
        self, pool: redis.ConnectionPool, script: _Script, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    ) -> list[Any]:
        """Every call in one round trip."""
        if not calls:
            return []
        with self._connection(pool) as connection:
            commands = [(b"EVALSHA", script.sha, len(keys), *keys, *args) for keys, args in calls]
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [_reply_or_error(connection) for _ in commands]
            for reply in replies:
                if isinstance(reply, Exception) and not isinstance(reply, redis.exceptions.NoScriptError):
                    raise reply
        return [
            self._call(script, *call, pool=pool) if isinstance(reply, redis.exceptions.NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _pool_for_renewal(self) -> redis.ConnectionPool:
        # Renewal comes from a thread of its own and never waits for a connection that a body keeps busy. Under gevent
        # a socket belongs to the hub of the thread that made it, so there each thread has its own.
        thread = native.get_ident() if native.patched() else 0
        if thread not in self._renewing:
            kwargs = self._pool.connection_kwargs
            self._renewing[thread] = redis.ConnectionPool(connection_class=self._pool.connection_class, **kwargs)
        return self._renewing[thread]

    @contextmanager
    def _connection(self, pool: redis.ConnectionPool) -> Iterator[Any]:
        try:
            connection = _checked_out(pool)
            try:
                yield connection
            except redis.exceptions.ResponseError:
                raise  # the reply was read to its end
            except BaseException:
                # Also a signal's: a reply that is still on its way must not be read by the next caller.
                connection.disconnect()
                raise
            finally:
                pool.release(connection)
        except redis.exceptions.NoScriptError:
            raise
        except redis.exceptions.RedisError as error:
            self._explain(error)

    def _explain(self, error: redis.exceptions.RedisError) -> NoReturn:
        text = str(error)
        if isinstance(error, (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)):
            raise StoreError(repr(self), f"{text}: check the user and the password in the store's URL") from None
        if isinstance(error, _PASSING) or text.startswith(_PASSING_CODES):
            raise StoreUnavailableError(repr(self), text) from error
        if "WRONGTYPE" in text or "NOT_OURS" in text:
            raise StoreError(
                repr(self),
                "something else than an entry of ours is kept under its key; nothing was changed. "
                f"Give taskguard a namespace of its own, or remove the foreign keys below {self._namespace!r} ({text})",
            ) from error
        raise StoreError(repr(self), text) from error


def _checked_out(pool: redis.ConnectionPool) -> Any:
    # Before redis-py 6 the name of the command had to be given; since then giving it is deprecated.
    return pool.get_connection() if _NAMELESS else pool.get_connection("EVALSHA")


_NAMELESS = int(redis.__version__.split(".")[0]) >= 6


def _reply_or_error(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except redis.exceptions.ResponseError as error:
        return error


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
    ]


def _rare(claim: Claim) -> list[Any]:
    """What most claims leave at its default, and then is not sent."""
    rare = [
        claim.floor,
        claim.reuse,
        int(claim.skip),
        int(claim.replace_queued),
        claim.payload,
        claim.copy,
        micros(claim.copy_for),
        claim.join,
    ]
    return rare if rare != [0, "nothing", 0, 0, "", "", 0, ""] else []


def _held(key: str, reply: Any) -> Held:
    _, owner, attempt, token, state, since, remaining, payload, publish = reply
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
    state, owner, attempt, token, since, remaining, starts, copies, payload, how, outcome = reply
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
    )


def _tag(key: str) -> str:
    """The key as it may stand in a hash tag, which ends at the first closing brace."""
    return key.replace("%", "%25").replace("}", "%7D")


def _literal(text: str) -> str:
    """The text as it matches only itself in a pattern of SCAN."""
    return "".join(f"\\{letter}" if letter in "\\*?[]^" else letter for letter in text)


def _without_secrets(text: str, password: str | None) -> str:
    return text.replace(password, "***") if password else text
