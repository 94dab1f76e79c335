"""Entries in Redis 6.2 and later, or Valkey: each verb is one script, and one round trip.

An entry lives at `namespace:{key}` and a job's receipt at `namespace:{key}:owner`: one hash tag, so all that a verb
touches is in one slot, and every key that a script touches is named in its KEYS.
"""

from __future__ import annotations

import hashlib
import re
import select
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskguard import native
from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.forks import Forked, watch_forks
from taskguard.rules import MICROS, micros, token_of
from taskguard.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease
from taskguard.stores import safe_url
from taskguard.stores.histories.redis import RedisHistory

SCAN_PAGE = 500
TIMEOUT = 5.0

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
    def __init__(self, *names: str) -> None:
        folder = files(__package__).joinpath("lua")
        self.source = "".join([folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names]).encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


_CLAIM: Final = _Script("claim_new", "entry", "claim")
_RENEW: Final = _Script("entry", "renew")
_REQUEUE: Final = _Script("entry", "requeue")
_COMPLETE: Final = _Script("entry", "complete")
_RELEASE: Final = _Script("entry", "release")
_GET: Final = _Script("entry", "get")
_FORGET: Final = _Script("entry", "forget")
_HISTORY: Final = _Script("history")


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
        _Connections(pool).make()
    except (ValueError, TypeError, redis.RedisError) as error:
        # What the driver says may quote a piece of the password; the name of an option is safe to show.
        option = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        problem = f"has an option that redis-py does not know, {option[1]}" if option else "cannot be read"
        raise ConfigurationError(
            f"{safe_url(url)} {problem}; write redis://[:password@]host:port/db[?timeout=seconds] or "
            "unix:///path/to/socket, and inside a password %40 for @, %2F for /, %3F for ?, %23 for #"
        ) from None
    return RedisStore(_Connections(pool), namespace=namespace, name=safe_url(url))


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

    def __init__(self, client: redis.Redis | _Connections, *, namespace: str = "taskguard", name: str = "") -> None:
        if "{" in namespace or "}" in namespace:
            raise ConfigurationError(f"namespace={namespace!r} must have no braces: they mark the key's hash slot")
        if not isinstance(client, (redis.Redis, _Connections)):
            raise ConfigurationError(f"RedisStore takes a redis.Redis client, not {type(client).__name__}")
        self._connections = client if isinstance(client, _Connections) else _Lent(client.connection_pool)
        self._renewing: dict[int, _Connections] = {}
        self._namespace = namespace
        self._name = name or "RedisStore"
        self.can_be_silent = False
        """Whether the server is known to be silent when it is told to be; see `learn_silence`."""
        self.history = RedisHistory(_Wire(self), namespace)

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
        return [reply == 1 for reply in self._call_many(self._for_renewal(), _RENEW, calls)]

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        args = [micros(copy_for), int(keep_starts), 0, copy, *_who(claimant), micros(seconds)]
        return bool(self._call(_REQUEUE, self._keys(claimant), args) == b"1")

    def mark(self, published: Sequence[tuple[Claimant, float]], /, *, copy_for: float) -> list[bool]:
        keys: list[str] = []
        args: list[Any] = [micros(copy_for), 1, 1, ""]
        for claimant, seconds in published:
            keys += self._keys(claimant)
            args += [*_who(claimant), micros(seconds)]
        # One call for all: most of what a script costs is its start. (On one server; they are in many slots.)
        reply = self._call(_REQUEUE, keys, args, over=self._for_renewal()) if keys else b""
        return [digit == _ONE for digit in reply]

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
            cursor, found = self._execute(self._connections, b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCAN_PAGE)
            keys = [name for name in found if name.index(b"}") == len(name) - 1]  # a receipt goes on after the brace
            replies = self._call_many(self._connections, _GET, [([name], []) for name in keys])
            for name, reply in zip(keys, replies, strict=True):
                if reply:
                    yield _entry(self._key_of(name), reply)
            if int(cursor) == 0:
                return

    def forget(self, key: str, /, token: int = 0) -> bool:
        return bool(self._call(_FORGET, [self._entry_key(key)], [token]) == 1)

    def close(self) -> None:
        for connections in (self._connections, *self._renewing.values()):
            connections.close()

    def execute(self, *command: Any) -> Any:
        """One command of the server's own, such as INFO: for whoever looks after the server."""
        return self._execute(self._connections, *command)

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
        self, script: _Script, keys: Sequence[Any], args: Sequence[Any], *, over: _Connections | None = None
    ) -> Any:
        over = over or self._connections
        try:
            return self._execute(over, b"EVALSHA", script.sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            # The server was restarted, promoted, or told to forget its scripts: EVAL teaches it again.
            return self._execute(over, b"EVAL", script.source, len(keys), *keys, *args)

    def _execute(self, over: _Connections, *command: Any) -> Any:
        [reply] = self._exchange(over, _packed(command), 1)
        if isinstance(reply, redis.exceptions.NoScriptError):
            raise reply
        return reply

    def _call_many(
        self, over: _Connections, script: _Script, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    ) -> list[Any]:
        """Every call in one round trip."""
        if not calls:
            return []
        packed = b"".join([_packed((b"EVALSHA", script.sha, len(keys), *keys, *args)) for keys, args in calls])
        return [
            self._call(script, *call, over=over) if isinstance(reply, redis.exceptions.NoScriptError) else reply
            for call, reply in zip(calls, self._exchange(over, packed, len(calls)), strict=True)
        ]

    def _exchange(self, over: _Connections, packed: bytes, expected: int) -> list[Any]:
        """Send what is packed, and read as many replies."""
        connection = None
        try:
            try:
                connection = over.take()
                connection.send_packed_command([packed], check_health=False)
                replies = []
                for _ in range(expected):
                    try:
                        replies.append(connection.read_response(disable_decoding=True))
                    except redis.exceptions.ResponseError as error:  # a reply like any other: the rest is to be read
                        replies.append(error)
                for reply in replies:
                    if isinstance(reply, Exception) and not isinstance(reply, redis.exceptions.NoScriptError):
                        raise reply
                return replies
            except BaseException as error:
                # Also a signal's: a reply that is still on its way must not be read by the next caller. And one that
                # says "read only" may come from a server that is not the primary any more: the next one looks anew.
                if connection is not None and not _is_sound_after(error):
                    connection.disconnect()
                raise
            finally:
                if connection is not None:
                    over.give_back(connection)
        except redis.exceptions.RedisError as error:
            self._explain(error)

    def learn_silence(self) -> None:
        """Find out whether the server can be told not to answer. A user may lack the right, and a proxy the command.

        Their refusal is an answer too, and would be read by whoever uses the connection next: so it is tried first.
        """
        connection = self._connections.make()
        try:
            connection.connect()
            commands = [(b"CLIENT", b"REPLY", b"SKIP"), (b"ECHO", b"not heard"), (b"ECHO", b"heard")]
            connection.send_packed_command([_packed(command) for command in commands], check_health=False)
            try:
                self.can_be_silent = connection.read_response(disable_decoding=True) == b"heard"
            except redis.exceptions.ResponseError:
                self.can_be_silent = False
        except redis.exceptions.RedisError as error:
            self._explain(error)
        finally:
            connection.disconnect()

    def _send(self, command: Sequence[Any]) -> None:
        """Have the server do it and say nothing: whoever sent it does not wait, and the connection stays clean."""
        try:
            connection = self._connections.take()
            try:
                silently = _packed((b"CLIENT", b"REPLY", b"SKIP"))
                connection.send_packed_command([silently, _packed(command)], check_health=False)
            except BaseException:
                connection.disconnect()
                raise
            finally:
                self._connections.give_back(connection)
        except redis.exceptions.RedisError as error:
            self._explain(error)

    def _for_renewal(self) -> _Connections:
        # Renewal comes from a thread of its own and never waits for a connection that a body keeps busy. Under gevent
        # a socket belongs to the hub of the thread that made it, so there each thread has its own.
        thread = native.get_ident() if native.patched() else 0
        if thread not in self._renewing:
            self._renewing[thread] = _Connections(self._connections.pool)
        return self._renewing[thread]

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


class _Wire:
    """How the history speaks to the server."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def run(self, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return self._store._call(_HISTORY, keys, args, over=self._store._for_renewal())

    def send(self, keys: Sequence[str], args: Sequence[Any]) -> None:
        # With its source: nobody hears that the server does not know the script.
        command = [b"EVAL", _HISTORY.source, len(keys), *keys, *args]
        if self._store.can_be_silent:
            self._store._send(command)
        else:
            self.ask(*command)

    def ask(self, *command: Any) -> Any:
        return self._store._execute(self._store._connections, *command)


class _Connections(Forked):
    """Connections of our own, made as the pool makes them, but not counted among its own.

    A list is all the pool that is needed: the driver's own costs more than a request. `list.pop` and `append` are
    atomic, so threads share it without a lock.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self.pool = pool
        self._idle: list[Any] = []
        watch_forks(self)

    def make(self) -> Any:
        kwargs = dict(self.pool.connection_kwargs)
        for name in ("socket_timeout", "socket_connect_timeout"):
            if kwargs.get(name) is None:
                kwargs[name] = TIMEOUT  # a server that says nothing must not stop the renewal of all leases
        # A blind retry of the driver would hide a lost reply from us; the guard asks again knowingly.
        kwargs["retry"] = Retry(NoBackoff(), 0)
        return self.pool.connection_class(**kwargs)

    def take(self) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.make()
            connection.connect()
            return connection
        if _is_over(connection):
            connection.disconnect()
            connection.connect()
        return connection

    def give_back(self, connection: Any) -> None:
        self._idle.append(connection)

    def after_fork(self) -> None:
        self._idle = []

    def close(self) -> None:
        while self._idle:
            self._idle.pop().disconnect()


class _Lent(_Connections):
    """The connections of a client that somebody else made, and uses too."""

    def take(self) -> Any:
        # Before redis-py 6 the name of the command had to be given; since then giving it is deprecated.
        return self.pool.get_connection() if _NAMELESS else self.pool.get_connection("EVALSHA")

    def give_back(self, connection: Any) -> None:
        self.pool.release(connection)

    def close(self) -> None:
        """They are not ours to close."""


# Not gevent's: theirs wait in the hub, and the driver knows how.
_Socket, _poll, _READABLE = native.original("socket", "socket"), native.original("select", "poll"), select.POLLIN
_NAMELESS = int(redis.__version__.split(".")[0]) >= 6


def _is_over(connection: Any) -> bool:
    """Whether the server hung up, or says what nobody asked for, since the last request. Asks nobody."""
    socket = connection._sock
    if type(socket) is _Socket:  # what the driver does costs as much as half a request
        look = _poll()
        look.register(socket.fileno(), _READABLE)
        return bool(look.poll(0))
    try:
        return bool(connection.can_read(timeout=0))
    except (redis.exceptions.ConnectionError, OSError):
        return True


def _is_sound_after(error: BaseException) -> bool:
    return isinstance(error, redis.exceptions.ResponseError) and not isinstance(error, _PASSING)


def _packed(command: Sequence[Any]) -> bytes:
    """The command as it goes over the wire, at a third of the driver's price."""
    words = [word if type(word) is bytes else str(word).encode() for word in command]
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))


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
    """What most claims leave at its default; from the last one on that does not, nothing is sent."""
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
    told = len(rare)
    while told and rare[told - 1] == _USUAL[told - 1]:
        told -= 1
    return rare[:told]


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
    state, owner, attempt, token, since, remaining, starts, copies, payload, how, outcome, unended = reply
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
        unended=tuple(name.decode() for name in unended),
    )


def _tag(key: str) -> str:
    """The key as it may stand in a hash tag, which ends at the first closing brace."""
    return key.replace("%", "%25").replace("}", "%7D")


def _literal(text: str) -> str:
    """The text as it matches only itself in a pattern of SCAN."""
    return "".join(f"\\{letter}" if letter in "\\*?[]^" else letter for letter in text)
