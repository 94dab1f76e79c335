"""How we speak to Redis: a connection of redis-py, and our own way of packing.

The driver is asked for connections and for reading replies. Its pool and its packing cost more than a request does.
"""

from __future__ import annotations

import hashlib
import select
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskguard.runtime import native
from taskguard.runtime.forks import Forked, watch_forks
from taskguard.stores.redis_errors import explain, is_passing
from taskguard.stores.turns import Turns

TIMEOUT = 5.0


class Script:
    def __init__(self, *names: str) -> None:
        folder = files(__package__).joinpath("lua")
        self.source = "".join([folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names]).encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


class Wire:
    """Scripts and commands, each one exchange. Errors call the store *name*; its keys begin with *namespace*."""

    def __init__(self, connections: Connections, name: str, namespace: str) -> None:
        self._connections = connections
        self._renewing: dict[int, Connections] = {}
        self._thread = native.thread_local()
        self._name = name
        self._namespace = namespace
        self._has_answered = False
        """A server that answered once has a name: if it does not resolve any more, that will pass."""
        self.can_be_silent = False
        """Whether the server is known to be silent when it is told to be; see `learn_silence`."""

    def close(self) -> None:
        for connections in (self._connections, *list(self._renewing.values())):
            connections.close()

    def call(
        self,
        script: Script,
        keys: Sequence[Any],
        args: Sequence[Any],
        *,
        aside: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """Run the script. *aside*: over connections that no body keeps busy, as whoever renews leases does."""
        over = self._for_renewal() if aside else self._connections
        try:
            return self._execute(over, b"EVALSHA", script.sha, len(keys), *keys, *args, meanwhile=meanwhile)
        except redis.exceptions.NoScriptError:
            # The server was restarted, promoted, or told to forget its scripts: EVAL teaches it again.
            return self._execute(over, b"EVAL", script.source, len(keys), *keys, *args)

    def call_many(
        self, script: Script, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]], *, aside: bool = False
    ) -> list[Any]:
        """Every call in one round trip."""
        if not calls:
            return []
        over = self._for_renewal() if aside else self._connections
        commands = b"".join([packed((b"EVALSHA", script.sha, len(keys), *keys, *args)) for keys, args in calls])
        return [
            self.call(script, *call, aside=aside) if isinstance(reply, redis.exceptions.NoScriptError) else reply
            for call, reply in zip(calls, self._exchange(over, commands, len(calls)), strict=True)
        ]

    def execute(self, *command: Any) -> Any:
        """One command of the server's own."""
        return self._execute(self._connections, *command)

    def _execute(self, over: Connections, *command: Any, meanwhile: Callable[[], None] | None = None) -> Any:
        [reply] = self._exchange(over, packed(command), 1, meanwhile)
        if isinstance(reply, redis.exceptions.NoScriptError):
            raise reply
        return reply

    def _exchange(
        self, over: Connections, commands: bytes, expected: int, meanwhile: Callable[[], None] | None = None
    ) -> list[Any]:
        """Send what is packed, and read as many replies; *meanwhile*, which is the server's time, do that."""
        try:
            source = over.source()
            if source.turns is None:
                replies = _replies(source, commands, expected, meanwhile)
            else:
                turn = native.allocate_lock()
                with turn:
                    source.wait_for(turn)
                    replies = _replies(source, commands, expected, meanwhile)
            self._has_answered = True
            for reply in replies:
                if isinstance(reply, Exception) and not isinstance(reply, redis.exceptions.NoScriptError):
                    raise reply
            return replies
        except redis.exceptions.RedisError as error:
            explain(error, self._name, self._namespace, has_answered=self._has_answered)

    def learn_silence(self) -> None:
        """Find out whether the server can be told not to answer. A user may lack the right, and a proxy the command.

        Their refusal is an answer too, and would be read by whoever uses the connection next: so it is tried first.
        """
        connection = self._connections.make()
        try:
            connection.connect()
            commands = [(b"CLIENT", b"REPLY", b"SKIP"), (b"ECHO", b"not heard"), (b"ECHO", b"heard")]
            connection.send_packed_command([packed(command) for command in commands], check_health=False)
            try:
                self.can_be_silent = connection.read_response(disable_decoding=True) == b"heard"
            except redis.exceptions.ResponseError:
                self.can_be_silent = False
        except redis.exceptions.RedisError as error:
            explain(error, self._name, self._namespace, has_answered=self._has_answered)
        finally:
            connection.disconnect()

    def tell(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> None:
        """Have the script run; if the server can be told to be silent, wait for no answer.

        With its source, since nobody hears that the server does not know it. The connection stays clean.
        """
        command = (b"EVAL", script.source, len(keys), *keys, *args)
        if not self.can_be_silent:
            self.execute(*command)
            return
        silently = packed((b"CLIENT", b"REPLY", b"SKIP")) + packed(command)
        self._exchange(self._connections, silently, 0)

    def _for_renewal(self) -> Connections:
        # Renewal comes from a thread of its own and never waits for a connection that a body keeps busy. Under gevent
        # a socket belongs to the hub of the thread that made it, so there each thread has its own.
        if not native.patched():
            if 0 not in self._renewing:
                self._renewing[0] = Connections(self._connections.pool)
            return self._renewing[0]
        mine: Connections | None = getattr(self._thread, "renewing", None)
        if mine is None:
            thread = native.get_ident()
            # A thread that has ended closes nothing, and its number is given to another.
            ended = self._renewing.keys() - sys._current_frames().keys() | {thread}
            for connections in [self._renewing.pop(number, None) for number in ended]:
                if connections is not None:
                    connections.abandon()
            mine = self._thread.renewing = self._renewing[thread] = Connections(self._connections.pool)
            # They wait in the hub of this thread, which ends with it.
            native.at_thread_end(lambda: self._renewing.pop(thread, mine).close())
        return mine


class Connections(Forked):
    """Connections of our own, made as the pool makes them, but not counted among its own.

    A list is all the pool that is needed: the driver's own costs more than a request. `list.pop` and `append` are
    atomic, so threads share it without a lock. And what an exception takes away between the two is closed by Python:
    the driver's pool would count it as in use for ever.
    """

    turns: Turns | None = None
    """How many may be used at once, if there is a limit."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self.pool = pool
        self._idle: list[Any] = []
        watch_forks(self)

    def source(self) -> Connections:
        """Those that the next verb uses."""
        return self

    def wait_for(self, turn: Any) -> None:
        """Until one more connection may be used by the holder of *turn*, which has locked it."""
        if self.turns is not None:
            timeout = self.pool.connection_kwargs.get("socket_timeout") or TIMEOUT
            if not self.turns.wait(turn, time.monotonic() + timeout):
                raise redis.exceptions.ConnectionError("all connections are in use: give the client max_connections=")

    def make(self) -> Any:
        given = self.pool.connection_kwargs.items()
        kwargs = {name: value for name, value in given if not name.startswith(_LEFT_OUT)} | _PLAIN
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

    def drop(self, connection: Any) -> None:
        """Not to be used again."""
        connection.disconnect()

    def after_fork(self) -> None:
        self._idle = []

    def close(self) -> None:
        while self._idle:
            self._idle.pop().disconnect()

    def abandon(self) -> None:
        """Close those of a thread that has ended, without its hub."""
        while self._idle:
            connection = self._idle.pop()
            socket, connection._sock = connection._sock, None
            if socket is not None:
                getattr(socket, "_sock", socket).close()


class Lent(Connections):
    """What is used beside a client that somebody else made: connections of our own, as many as that one may have.

    Not those of its pool, which counts what a signal's exception takes away as in use for ever. With *shares* they are
    taken from there until anything is raised: for a process of one job, which is not to open a second one.
    """

    def __init__(self, pool: redis.ConnectionPool, *, shares: bool = False) -> None:
        super().__init__(pool)
        self._shares = shares
        self._begin()

    def _begin(self) -> None:
        self.turns = Turns(self.pool.max_connections)
        # Taken out by a verb, and put back only after its success: a pool can lose one connection by us, and no more.
        self._shared: list[Connections] = [_Pooled(self)] if self._shares else []

    def source(self) -> Connections:
        try:
            return self._shared.pop()
        except IndexError:
            return self

    def share_again(self, pooled: _Pooled) -> None:
        self._shared.append(pooled)

    def after_fork(self) -> None:
        super().after_fork()
        self._begin()  # turns of threads that are not here would never be over


class _Pooled(Connections):
    """The connections of the client's own pool, for one verb at a time."""

    def __init__(self, lent: Lent) -> None:
        self._lent, self.pool = weakref.proxy(lent), lent.pool

    def take(self) -> Any:
        # Before redis-py 6 the name of the command had to be given; since then giving it is deprecated.
        return self.pool.get_connection() if _NAMELESS else self.pool.get_connection("EVALSHA")

    def give_back(self, connection: Any) -> None:
        self.pool.release(connection)
        self._lent.share_again(self)

    def drop(self, connection: Any) -> None:
        connection.disconnect()
        self.pool.release(connection)


# A work horse makes a connection for each job: it says no more than it must, which is a tenth of what the driver says.
_LEFT_OUT = ("driver_info", "lib_", "maint", "orig_", "protocol")
_PLAIN = {"protocol": 2} | (
    {"driver_info": None} if hasattr(redis, "DriverInfo") else dict.fromkeys(("lib_name", "lib_version"))
)

_NAMELESS = int(redis.__version__.split(".")[0]) >= 6

# Not gevent's: theirs wait in the hub, and the driver knows how.
_Socket, _poll, _READABLE = native.original("socket", "socket"), native.original("select", "poll"), select.POLLIN


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


def _replies(
    over: Connections, commands: bytes, expected: int, meanwhile: Callable[[], None] | None = None
) -> list[Any]:
    """What the server answers, errors of commands too. The connection goes back once all of it is read."""
    connection, replies, is_sound = over.take(), [], True
    try:
        connection.send_packed_command([commands], check_health=False)
        if meanwhile is not None:
            meanwhile()
        for _ in range(expected):
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except redis.exceptions.ResponseError as error:  # a reply like any other: the rest is to be read
                replies.append(error)
                is_sound = is_sound and not is_passing(error)
    except BaseException:
        # Also a signal's: a reply that is still on its way must not be read by the next caller. It is not given back
        # at all: a second signal may come before it is disconnected.
        over.drop(connection)
        raise
    if is_sound:
        over.give_back(connection)
    else:
        # One that says "read only" may come from a server that is not the primary any more: the next verb looks anew.
        over.drop(connection)
    return replies


def packed(command: Sequence[Any]) -> bytes:
    """The command as it goes over the wire, at a third of the driver's price."""
    words = [b"*%d\r\n" % len(command)]
    for word in command:
        text = word if type(word) is bytes else str(word).encode()
        words.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(words)
