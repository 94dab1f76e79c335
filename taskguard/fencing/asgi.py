"""Middleware that puts a `Receiver` in front of an ASGI application: FastAPI, Starlette, Django, Litestar …

Threads call the store, so that the event loop is never blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from taskguard.fencing.exchange import Request, Response
from taskguard.fencing.receiver import Admission, Receiver, Steps
from taskguard.protocol.outcomes import MOST_BYTES

__all__ = ["Fenced"]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class Fenced:
    """`app = Fenced(app, Receiver("redis://…"))`, or `app.add_middleware(Fenced, receiver=…)`."""

    def __init__(self, app: App, receiver: Receiver) -> None:
        self._app = app
        self._receiver = receiver

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        if scope["type"] != "http" or not self._receiver.concerns(scope["method"], headers):
            await self._app(scope, receive, send)
            return
        # Read the body before the claim: a client that stops half-way must not block others.
        body = await _body(receive, self._receiver.max_body)
        if body is None:
            return
        if len(body) > self._receiver.max_body:
            await _send(self._receiver.too_large(), send)
            return
        query = scope.get("query_string", b"").decode("latin-1")
        request = Request(scope["method"], scope["path"], query, headers, body)
        admission = await _admit(self._receiver, request)
        if isinstance(admission, Response):
            await _send(admission, send)
            return
        held = _HeldResponse(admission, send)
        try:
            await self._app(_plain(scope), _replayed(body, receive), held.take)
            await held.record_completion()
        except BaseException:
            # If the application has answered, a later error (or one while the store records it) does not undo that.
            await _shielded(admission.leave if held.is_finished else admission.fail)
            raise
        await _shielded(admission.leave)


class _HeldResponse:
    """Holds the application's response until the store has it, or until it is too long to store.

    The response ends with its last message. What the application does afterwards, such as background tasks, neither
    delays the response nor revokes it.
    """

    def __init__(self, admission: Admission, send: Send) -> None:
        self._admission = admission
        self._send = send
        self._messages: list[Message] = []
        self._size = 0
        self._long = False
        self.is_finished = False

    async def take(self, message: Message) -> None:
        if self.is_finished:
            await self._send(message)  # the server rejects it
            return
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        if not self._long:
            self._messages.append(message)
            self._size += len(message.get("body", b""))
            if self._size > MOST_BYTES:
                self._long = True
                *before, message = self._messages
                for earlier in before:
                    await self._pass_on(earlier)
        if self._long:
            if is_last:
                await self.record_completion()
            await self._pass_on(message)
        elif is_last:
            await self._finish()

    async def record_completion(self) -> None:
        """Record only completion: the response is too long to store, or it is incomplete."""
        if self.is_finished:
            return
        self.is_finished = True
        head = self._head()
        if head is None:
            await _shielded(self._admission.fail)
            return  # the server handles an application that sends no response
        await _shielded(lambda: self._admission.answered(head["status"]))
        if not self._long:
            for message in self._messages:
                await self._send(message)

    async def _finish(self) -> None:
        head = self._head()
        if head is None:
            await self.record_completion()
            return
        self.is_finished = True
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in head.get("headers", ())]
        body = b"".join(message.get("body", b"") for message in self._messages)
        response = Response(head["status"], headers, body)
        await _send(await _shielded(lambda: self._admission.answer(response)), self._send)

    async def _pass_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except BaseException:
            # If the client disconnects, the work must not run again: the application had begun to respond.
            await self.record_completion()
            raise

    def _head(self) -> Message | None:
        return next((message for message in self._messages if message["type"] == "http.response.start"), None)


async def _admit(receiver: Receiver, request: Request) -> Admission | Response:
    """Waits in the event loop: waiting requests would use up the threads that the holder needs to finish."""
    steps = receiver.admitting(request)
    while True:
        asking = asyncio.create_task(asyncio.to_thread(_next_step, steps))
        try:
            answer = await asyncio.shield(asking)
            if not isinstance(answer, float):
                return answer
            await asyncio.sleep(answer)
        except asyncio.CancelledError:
            # The thread continues, and the heartbeat would renew for ever whatever lease it gets.
            asking.add_done_callback(lambda asked: _release_when_granted(steps, asked))
            raise


def _next_step(steps: Steps[Admission | Response]) -> float | Admission | Response:
    try:
        return next(steps)
    except StopIteration as end:
        answer: Admission | Response = end.value
        return answer


def _release_when_granted(
    steps: Steps[Admission | Response], asked: asyncio.Task[float | Admission | Response]
) -> None:
    if not asked.cancelled() and asked.exception() is None:
        answer = asked.result()
        end = answer.fail if isinstance(answer, Admission) else steps.close
        asyncio.get_running_loop().run_in_executor(None, end)


def _headers(scope: Message) -> dict[str, str]:
    """By name. As in WSGI, values of a repeated header are joined: two tokens are not a token."""
    headers: dict[str, str] = {}
    for raw, value in scope.get("headers", ()):
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    return headers


async def _body(receive: Receive, at_most: int) -> bytes | None:
    """The body, cut off once it is longer than *at_most*; None if the client disconnected."""
    body = b""
    while len(body) <= at_most:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body


def _plain(scope: Message) -> Message:
    """The scope without extensions that send files or trailers: the middleware could not see and store those."""
    extensions = scope.get("extensions") or {}
    seen = {name: value for name, value in extensions.items() if not name.startswith("http.response.")}
    return {**scope, "extensions": seen}


def _replayed(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def replayed() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _shielded(call: Callable[[], Any]) -> Any:
    """Run *call* even if this request is cancelled, so that the store learns how it ended."""
    return await asyncio.shield(asyncio.to_thread(call))


async def _send(response: Response, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
