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
        self._listener: asyncio.Server | None = None
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
        self._listener = await asyncio.start_server(self._accept, HOST, port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            if self._listener is not None:
                await link.run()
        finally:
            link.abort()
            self._links.discard(link)

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

    def _descriptors(self) -> Iterator[int]:
        if self._listener is not None:
            yield from (listening.fileno() for listening in self._listener.sockets)
        for link in self._links:
            yield from (writer.get_extra_info("socket").fileno() for writer in link.writers)


class _Link:
    """One connection of a client, and the one made for it to the server."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self._proxy = proxy
        self._client = reader, writer
        self._task = asyncio.current_task()
        self._loses_reply = False

    async def run(self) -> None:
        """Carry data until either end is gone."""
        # A cancelled link was cut; an OSError is an end that failed. Both are what this proxy is for.
        with suppress(OSError, asyncio.CancelledError):
            await self._proxy._requests_pass.wait()
            server = await asyncio.open_connection(HOST, self._proxy.upstream)
            self.writers.append(server[1])
            requests = asyncio.create_task(self._carry_requests(server[1]))
            try:
                await self._carry_replies(server[0])
            finally:
                requests.cancel()

    def reset(self) -> None:
        """Reset both ends, whatever is under way."""
        self.abort()
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        for writer in self.writers:
            if not writer.transport.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()

    async def _carry_requests(self, server: asyncio.StreamWriter) -> None:
        try:
            while request := await self._client[0].read(_CHUNK):
                await self._proxy._hold(self._proxy._requests_pass)
                # Decided before the server can answer.
                self._loses_reply = self._loses_reply or self._proxy._loses(request)
                server.write(request)
                await server.drain()
            server.write_eof()
        except OSError:
            self.abort()

    async def _carry_replies(self, server: asyncio.StreamReader) -> None:
        client = self._client[1]
        while reply := await server.read(_CHUNK):
            if self._loses_reply:
                await _drain(server)
                self._proxy.swallowed += 1
                return
            await self._proxy._hold(self._proxy._replies_pass)
            client.write(reply)
            await client.drain()
        # The server said goodbye in good order, and so does the proxy: no reset, which could overtake the last reply.
        client.close()


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
        for descriptor in proxy._descriptors():
            if descriptor >= 0:
                os.dup2(null, descriptor)
    os.close(null)


os.register_at_fork(after_in_child=_let_go_in_child)
