"""A `Receiver` before an ASGI application: FastAPI, Starlette, Django, Litestar …

The store is asked in threads, so that the event loop goes on.
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
        # Read before anything is claimed: a sender that stops half-way must hold nobody up.
        body = await _body(receive, self._receiver.max_body)
        if body is None:
            return
        if len(body) > self._receiver.max_body:
            await _send(self._receiver.too_large(), send)
            return
        query = scope.get("query_string", b"").decode("latin-1")
        request = Request(scope["method"], scope["path"], query, headers, body)
        admission = await _admitted(self._receiver, request)
        if isinstance(admission, Response):
            await _send(admission, send)
            return
        answering = _Answering(admission, send)
        try:
            await self._app(_plain(scope), _replayed(body, receive), answering.take)
            await answering.break_off()
        except BaseException:
            # One that has answered is not undone by what happens after that, or while it is being told to the store.
            await _in_any_case(admission.leave if answering.is_finished else admission.fail)
            raise
        await _in_any_case(admission.leave)


class _Answering:
    """What the application says, held back until it is kept; or, if it is long, until that is seen.

    The last message is the answer's end. What the application does after it, such as tasks in the background, neither
    delays the answer nor takes it back.
    """

    def __init__(self, admission: Admission, send: Send) -> None:
        self._admission = admission
        self._send = send
        self._said: list[Message] = []
        self._size = 0
        self._long = False
        self.is_finished = False

    async def take(self, message: Message) -> None:
        if self.is_finished:
            await self._send(message)  # which the server refuses
            return
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        if not self._long:
            self._said.append(message)
            self._size += len(message.get("body", b""))
            if self._size > MOST_BYTES:
                self._long = True
                *before, message = self._said
                for held_back in before:
                    await self._pass_on(held_back)
        if self._long:
            if is_last:
                await self.break_off()
            await self._pass_on(message)
        elif is_last:
            await self._finish()

    async def break_off(self) -> None:
        """No more is kept of the answer than that it was given: it is long, or was not said to its end."""
        if self.is_finished:
            return
        self.is_finished = True
        head = self._head()
        if head is None:
            await _in_any_case(self._admission.fail)
            return  # the server knows what to do about an application that says nothing
        await _in_any_case(lambda: self._admission.answered(head["status"]))
        if not self._long:
            for message in self._said:
                await self._send(message)

    async def _finish(self) -> None:
        head = self._head()
        if head is None:
            await self.break_off()
            return
        self.is_finished = True
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in head.get("headers", ())]
        body = b"".join(message.get("body", b"") for message in self._said)
        response = Response(head["status"], headers, body)
        await _send(await _in_any_case(lambda: self._admission.answer(response)), self._send)

    async def _pass_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except BaseException:
            # A client that went away is no reason to do the work again: the application had begun to answer.
            await self.break_off()
            raise

    def _head(self) -> Message | None:
        return next((message for message in self._said if message["type"] == "http.response.start"), None)


async def _admitted(receiver: Receiver, request: Request) -> Admission | Response:
    """Waits in the event loop: in threads, those who wait would keep them from the one they wait for."""
    steps = receiver.admitting(request)
    while True:
        asking = asyncio.create_task(asyncio.to_thread(_go_on, steps))
        try:
            answer = await asyncio.shield(asking)
            if not isinstance(answer, float):
                return answer
            await asyncio.sleep(answer)
        except asyncio.CancelledError:
            # The thread goes on, and what it is granted would be renewed for ever.
            asking.add_done_callback(lambda asked: _give_back(steps, asked))
            raise


def _go_on(steps: Steps[Admission | Response]) -> float | Admission | Response:
    try:
        return next(steps)
    except StopIteration as end:
        answer: Admission | Response = end.value
        return answer


def _give_back(steps: Steps[Admission | Response], asked: asyncio.Task[float | Admission | Response]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        answer = asked.result()
        end = answer.fail if isinstance(answer, Admission) else steps.close
        asyncio.get_running_loop().run_in_executor(None, end)


def _headers(scope: Message) -> dict[str, str]:
    """By their names; what comes twice is one list, as WSGI has it: a token that is two is none."""
    headers: dict[str, str] = {}
    for raw, value in scope.get("headers", ()):
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    return headers


async def _body(receive: Receive, at_most: int) -> bytes | None:
    """What was sent, or the beginning of what is too much; None if the sender went away."""
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
    """Without the ways to answer by a file or by trailers: what is not seen here cannot be kept."""
    extensions = scope.get("extensions") or {}
    seen = {name: value for name, value in extensions.items() if not name.startswith("http.response.")}
    return {**scope, "extensions": seen}


def _replayed(body: bytes, receive: Receive) -> Receive:
    told = False

    async def replayed() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _in_any_case(call: Callable[[], Any]) -> Any:
    """Also if this request is cancelled meanwhile: the store is told how it ended."""
    return await asyncio.shield(asyncio.to_thread(call))


async def _send(response: Response, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
