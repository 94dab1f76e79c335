"""The connection to Redis: redis-py connects and parses replies, we pool and pack.

The driver's own pool and packing cost more than a request does.
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
    """Scripts and commands, each in one exchange. *name* is the store's name in errors, *namespace* its key prefix."""

    def __init__(self, connections: Connections, name: str, namespace: str) -> None:
        self._connections = connections
        self._renewing: dict[int, Connections] = {}
        self._thread = native.thread_local()
        self._name = name
        self._namespace = namespace
        self._has_answered = False
        """A server that answered once has a name: if it does not resolve any more, that will pass."""
        self.can_be_silent = False
        """Whether the server is known to support CLIENT REPLY SKIP; see `learn_silence`."""

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
        """Run the script. *aside*: over the renewal's connections, which no body keeps busy."""
        over = self._for_renewal() if aside else self._connections
        try:
            return self._execute(over, b"EVALSHA", script.sha, len(keys), *keys, *args, meanwhile=meanwhile)
        except redis.exceptions.NoScriptError:
            # The server was restarted or promoted, or its scripts were flushed: EVAL loads the script again.
            return self._execute(over, b"EVAL", script.source, len(keys), *keys, *args)

    def call_many(
        self, script: Script, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]], *, aside: bool = False
    ) -> list[Any]:
        """Run the script for all calls in one round trip."""
        if not calls:
            return []
        over = self._for_renewal() if aside else self._connections
        commands = b"".join([packed((b"EVALSHA", script.sha, len(keys), *keys, *args)) for keys, args in calls])
        return [
            self.call(script, *call, aside=aside) if isinstance(reply, redis.exceptions.NoScriptError) else reply
            for call, reply in zip(calls, self._exchange(over, commands, len(calls)), strict=True)
        ]

    def execute(self, *command: Any) -> Any:
        """Run one command of the server."""
        return self._execute(self._connections, *command)

    def _execute(self, over: Connections, *command: Any, meanwhile: Callable[[], None] | None = None) -> Any:
        [reply] = self._exchange(over, packed(command), 1, meanwhile)
        if isinstance(reply, redis.exceptions.NoScriptError):
            raise reply
        return reply

    def _exchange(
        self, over: Connections, commands: bytes, expected: int, meanwhile: Callable[[], None] | None = None
    ) -> list[Any]:
        """Send the packed commands, call *meanwhile* while the server works, and read the *expected* replies."""
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
        """Find out whether the server can skip a reply. A user may lack the permission, and a proxy the command.

        Their refusal is a reply too, which the next user of the connection would read: so this tries it first, on a
        connection of its own.
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

    def run_unanswered(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> None:
        """Run the script; if the server can skip its reply, do not wait for one.

        Sends the source, since nobody would read the error for an unknown script. The connection stays clean.
        """
        command = (b"EVAL", script.source, len(keys), *keys, *args)
        if not self.can_be_silent:
            self.execute(*command)
            return
        silently = packed((b"CLIENT", b"REPLY", b"SKIP")) + packed(command)
        self._exchange(self._connections, silently, 0)

    def _for_renewal(self) -> Connections:
        # Renewal runs in a thread of its own and must never wait for a connection that a body keeps busy. Under gevent
        # a socket belongs to the hub of the thread that created it, so there each thread has its own.
        if not native.patched():
            if 0 not in self._renewing:
                self._renewing[0] = Connections(self._connections.pool)
            return self._renewing[0]
        mine: Connections | None = getattr(self._thread, "renewing", None)
        if mine is None:
            thread = native.get_ident()
            # A thread that has ended closes nothing, and its number is reused.
            ended = self._renewing.keys() - sys._current_frames().keys() | {thread}
            for connections in [self._renewing.pop(number, None) for number in ended]:
                if connections is not None:
                    connections.abandon()
            mine = self._thread.renewing = self._renewing[thread] = Connections(self._connections.pool)
            # They wait in this thread's hub, which ends with the thread.
            native.at_thread_end(lambda: self._renewing.pop(thread, mine).close())
        return mine


class Connections(Forked):
    """Connections of our own, made with the pool's settings but outside of the pool.

    A list is enough of a pool: the driver's own costs more than a request. `list.pop` and `append` are atomic, so
    threads share it without a lock. If an exception loses a connection between the two, Python closes it: the driver's
    pool would count it as in use for ever.
    """

    turns: Turns | None = None
    """The limit of connections in use at once, if there is one."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self.pool = pool
        self._idle: list[Any] = []
        watch_forks(self)

    def source(self) -> Connections:
        """The connections for the next verb."""
        return self

    def wait_for(self, turn: Any) -> None:
        """Wait until the caller, which has locked *turn*, may use one more connection."""
        if self.turns is not None:
            timeout = self.pool.connection_kwargs.get("socket_timeout") or TIMEOUT
            if not self.turns.wait(turn, time.monotonic() + timeout):
                raise redis.exceptions.ConnectionError(
                    "all connections are in use; create the client with a higher max_connections="
                )

    def make(self) -> Any:
        given = self.pool.connection_kwargs.items()
        kwargs = {name: value for name, value in given if not name.startswith(_LEFT_OUT)} | _PLAIN
        for name in ("socket_timeout", "socket_connect_timeout"):
            if kwargs.get(name) is None:
                kwargs[name] = TIMEOUT  # a server that does not answer must not stop the renewal of all leases
        # A blind retry of the driver would hide a lost reply from us; the guard retries knowingly.
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
        """Close the connection instead of reusing it."""
        connection.disconnect()

    def after_fork(self) -> None:
        self._idle = []

    def close(self) -> None:
        while self._idle:
            self._idle.pop().disconnect()

    def abandon(self) -> None:
        """Close the connections of an ended thread, without its hub."""
        while self._idle:
            connection = self._idle.pop()
            socket, connection._sock = connection._sock, None
            if socket is not None:
                getattr(socket, "_sock", socket).close()


class Lent(Connections):
    """For a client that the caller made: connections of our own, up to the limit of the client's pool.

    They are not from its pool, which counts a connection lost to a signal's exception as in use for ever. With *shares*
    they come from the pool until anything is raised: a process for one job then need not open a second connection.
    """

    def __init__(self, pool: redis.ConnectionPool, *, shares: bool = False) -> None:
        super().__init__(pool)
        self._shares = shares
        self._begin()

    def _begin(self) -> None:
        self.turns = Turns(self.pool.max_connections)
        # A verb takes it out, and returns it only after success: so we can cost the pool at most one connection.
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
        self._begin()  # turns of threads that do not exist in the child would never end


class _Pooled(Connections):
    """The connections of the client's own pool, for one verb at a time."""

    def __init__(self, lent: Lent) -> None:
        self._lent, self.pool = weakref.proxy(lent), lent.pool

    def take(self) -> Any:
        # Before redis-py 6 the command's name was required; since then it is deprecated.
        return self.pool.get_connection() if _NAMELESS else self.pool.get_connection("EVALSHA")

    def give_back(self, connection: Any) -> None:
        self.pool.release(connection)
        self._lent.share_again(self)

    def drop(self, connection: Any) -> None:
        connection.disconnect()
        self.pool.release(connection)


# A work horse connects once per job: it sends no more than it must, a tenth of what the driver sends.
_LEFT_OUT = ("driver_info", "lib_", "maint", "orig_", "protocol")
_PLAIN = {"protocol": 2} | (
    {"driver_info": None} if hasattr(redis, "DriverInfo") else dict.fromkeys(("lib_name", "lib_version"))
)

_NAMELESS = int(redis.__version__.split(".")[0]) >= 6

# Not gevent's: gevent's sockets wait in the hub, and the driver handles them.
_Socket, _poll, _READABLE = native.original("socket", "socket"), native.original("select", "poll"), select.POLLIN


def _is_over(connection: Any) -> bool:
    """Whether the server closed the connection or sent unexpected data since the last request. Sends nothing."""
    socket = connection._sock
    if type(socket) is _Socket:  # the driver's check costs as much as half a request
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
    """The server's replies, including errors of commands. Returns the connection once all replies are read."""
    connection, replies, is_sound = over.take(), [], True
    try:
        connection.send_packed_command([commands], check_health=False)
        if meanwhile is not None:
            meanwhile()
        for _ in range(expected):
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except redis.exceptions.ResponseError as error:  # a reply like any other: read the rest too
                replies.append(error)
                is_sound = is_sound and not is_passing(error)
    except BaseException:
        # A signal's exception too: the next caller must not read a reply that is still on its way. The connection is
        # never returned: a second signal may arrive before it is disconnected.
        over.drop(connection)
        raise
    if is_sound:
        over.give_back(connection)
    else:
        # "Read only" may come from a server that is no longer the primary: the next verb connects again.
        over.drop(connection)
    return replies


def packed(command: Sequence[Any]) -> bytes:
    """The command in wire format, at a third of the driver's cost."""
    words = [b"*%d\r\n" % len(command)]
    for word in command:
        text = word if type(word) is bytes else str(word).encode()
        words.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(words)
