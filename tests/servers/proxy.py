"""A TCP proxy that breaks the network between a client and a server on purpose."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from urllib.parse import urlsplit

from .ports import HOST, ReservedPort

_CHUNK = 65536
_QUIET = 0.005
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Stands in front of the server on *port*, from construction to `close()`.

    Faults add up until `heal()`. Each method returns when its fault is in force, and may be called from any thread.
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.swallowed = 0
        """How many replies were swallowed so far."""
        self._seconds = 0.0
        self._loses: Callable[[bytes], bool] = _nothing
        self._requests_pass, self._replies_pass = _opened(), _opened()
        self._links: set[_Link] = set()
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._reserved = self._listen_somewhere()
        _open_proxies.add(self)

    @property
    def port(self) -> int:
        return self._reserved.number

    def url(self, original: str) -> str:
        """*original* with this proxy in the place of the server."""
        parts = urlsplit(original)
        credentials, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{credentials}{at}{HOST}:{self.port}").geturl()

    def heal(self) -> None:
        """Pass everything on as it is; what a black hole held back is delivered now."""
        self._do(self._heal())

    def delay(self, seconds: float) -> None:
        """Hold back each piece of data for *seconds*, in both directions."""
        self._seconds = seconds

    def blackhole(self, *, requests: bool = True, replies: bool = True) -> None:
        """Deliver nothing in the chosen directions; connections stay open and new ones are accepted.

        As in a network that lost its packets, what was held back arrives after `heal()`, even if the client gave up
        waiting for it. `cut()` throws it away.
        """
        self._do(self._blackhole(requests, replies))

    def refuse(self) -> None:
        """Reset all connections and refuse new ones, as a machine does on which nothing listens."""
        self._do(self._refuse())

    def cut(self) -> None:
        """Reset all connections that are open now."""
        self._do(self._cut())

    def swallow(self, next_n: int = 1, *, to: bytes = b"") -> None:
        """Lose the replies to the next *next_n* requests that contain *to*.

        Such a request reaches the server and is carried out. Once its reply has arrived here, the client's connection
        is reset instead. A new connection begins with requests of its driver: *to* tells them from the one meant.
        This is certain for a client that waits for each reply before it sends the next request.
        """
        self._loses = _Next(next_n, to)

    def swallow_randomly(self, probability: float, *, seed: int, to: bytes = b"") -> None:
        """As `swallow()`, for each request with this *probability*; the same *seed* throws the same dice."""
        dice = random.Random(seed)
        self._loses = lambda request: to in request and dice.random() < probability

    def close(self) -> None:
        """Reset all connections and give the port back."""
        if self._loop.is_closed():
            return
        _open_proxies.discard(self)
        self._do(self._refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.release()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, change: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(change, self._loop).result(10)

    def _listen_somewhere(self) -> ReservedPort:
        for _ in range(20):
            reserved = ReservedPort()
            with suppress(OSError):
                self._do(self._listen(reserved.number))
                return reserved
            reserved.release()
        raise OSError("no port for the proxy")

    # What follows runs in the loop's thread.

    async def _listen(self, port: int) -> None:
        self._listener = socket.create_server((HOST, port), backlog=256)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        # By hand, because asyncio.start_server knows of a connection only some turns of the loop after it accepted
        # it, and one that is cut in between would get away.
        with suppress(OSError):
            connection, _ = listener.accept()
            self._links.add(_Link(self, connection))

    async def _heal(self) -> None:
        self._seconds, self._loses = 0.0, _nothing
        self._requests_pass.set()
        self._replies_pass.set()
        if self._listener is None:
            await self._listen(self.port)

    async def _blackhole(self, requests: bool, replies: bool) -> None:
        if requests:
            self._requests_pass.clear()
        if replies:
            self._replies_pass.clear()

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self._cut()

    async def _cut(self) -> None:
        doomed = set(self._links)
        for link in doomed:
            link.reset()
        while doomed & self._links:
            await asyncio.sleep(0)

    async def _hold(self, passes: asyncio.Event) -> None:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        await passes.wait()

    def _sockets(self) -> Iterator[socket.socket]:
        if self._listener is not None:
            yield self._listener
        for link in self._links:
            yield from link.sockets


class _Link:
    """One connection of a client, and the one made for it to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        client.setblocking(False)
        self.sockets = [client]
        self._proxy = proxy
        self._writers: list[asyncio.StreamWriter] = []
        self._loses_reply = False
        self._task = proxy._loop.create_task(self._run())
        self._task.add_done_callback(self._end)

    def reset(self) -> None:
        """Reset both ends, whatever is under way."""
        self._abort()
        self._task.cancel()

    def _abort(self) -> None:
        for end in self.sockets:
            if end.fileno() >= 0:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        for writer in self._writers:
            writer.transport.abort()

    def _end(self, _: object) -> None:
        # A task that was cancelled before its first step has opened nothing that would close the socket.
        if not self._writers:
            self.sockets[0].close()
        self._proxy._links.discard(self)

    async def _run(self) -> None:
        try:
            client, to_client = await self._open(self.sockets[0])
            await self._proxy._requests_pass.wait()
            self.sockets.append(await self._connect())
            server, to_server = await self._open(self.sockets[1])
            requests = asyncio.create_task(self._carry_requests(client, to_server))
            try:
                await self._carry_replies(server, to_client)
            finally:
                requests.cancel()
        except OSError:
            pass  # either end failed, and now the other one hears of it
        finally:
            self._abort()

    async def _carry_requests(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        try:
            while request := await client.read(_CHUNK):
                await self._proxy._hold(self._proxy._requests_pass)
                # Decided before the server can answer.
                self._loses_reply = self._loses_reply or self._proxy._loses(request)
                to_server.write(request)
                await to_server.drain()
            to_server.write_eof()
        except OSError:
            self._abort()

    async def _carry_replies(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while reply := await server.read(_CHUNK):
            if self._loses_reply:
                await _drain(server)
                self._proxy.swallowed += 1
                return
            await self._proxy._hold(self._proxy._replies_pass)
            to_client.write(reply)
            await to_client.drain()
        # The server said goodbye in good order, and so does the proxy: a reset could overtake the last reply.
        to_client.close()
        await to_client.wait_closed()

    async def _connect(self) -> socket.socket:
        server = socket.socket()
        server.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(server, (HOST, self._proxy.upstream))
        except BaseException:
            server.close()
            raise
        return server

    async def _open(self, end: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(sock=end)
        self._writers.append(writer)
        return reader, writer


class _Next:
    """True for the next *count* requests that contain *to*."""

    def __init__(self, count: int, to: bytes) -> None:
        self._count = count
        self._to = to

    def __call__(self, request: bytes) -> bool:
        hit = self._count > 0 and self._to in request
        self._count -= hit
        return hit


def _nothing(_: bytes) -> bool:
    return False


def _opened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def _drain(server: asyncio.StreamReader) -> None:
    # A long reply comes in pieces, and only the last one proves that the request was carried out.
    with suppress(asyncio.TimeoutError):
        while await asyncio.wait_for(server.read(_CHUNK), _QUIET):
            pass


_open_proxies: weakref.WeakSet[Proxy] = weakref.WeakSet()


def _let_go_in_child() -> None:
    # A connection is reset, and a port refuses, only when the last process that holds it lets go. The numbers stay
    # taken (by /dev/null), because the objects inherited with them will close them again.
    null = os.open(os.devnull, os.O_RDWR)
    for proxy in _open_proxies:
        for inherited in proxy._sockets():
            if inherited.fileno() >= 0:
                os.dup2(null, inherited.fileno())
    os.close(null)


os.register_at_fork(after_in_child=_let_go_in_child)
