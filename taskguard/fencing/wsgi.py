"""Middleware that puts a `Receiver` in front of a WSGI application: Flask, Django, Pyramid, Bottle …"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from io import BytesIO
from typing import Any, TypeAlias

from taskguard.fencing.exchange import Request, Response
from taskguard.fencing.receiver import Admission, Receiver
from taskguard.protocol.outcomes import MOST_BYTES

__all__ = ["Fenced"]

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Fenced:
    """`app = Fenced(app, Receiver("redis://…"))`"""

    def __init__(self, app: App, receiver: Receiver) -> None:
        self._app = app
        self._receiver = receiver

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        headers = _headers(environ)
        if not self._receiver.concerns(environ["REQUEST_METHOD"], headers):
            return self._app(environ, start_response)
        # Read the body before the claim: a client that stops half-way must not block others.
        body = _body(environ, self._receiver.max_body + 1)
        if body is None:
            return _sent(self._receiver.cut_off(), start_response)
        if len(body) > self._receiver.max_body:
            return _sent(self._receiver.too_large(), start_response)
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        request = Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), headers, body)
        admission = self._receiver.admit(request)
        if isinstance(admission, Response):
            return _sent(admission, start_response)
        environ = {**environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return _HeldResponse(admission, start_response).run(self._app, environ)


class _HeldResponse:
    """Holds the application's response until the store has it, or until it is too long to store."""

    def __init__(self, admission: Admission, start_response: StartResponse) -> None:
        self._admission = admission
        self._start_response = start_response
        self._head: tuple[str, list[tuple[str, str]]] = ("", [])
        self._said: list[bytes] = []
        self._is_long = False

    def run(self, app: App, environ: Environ) -> Iterable[bytes]:
        chunks: Iterable[bytes] = ()
        try:
            chunks = app(environ, self._begin)
            rest = iter(chunks)
            for chunk in rest:
                self._said.append(chunk)
                if sum(map(len, self._said)) > MOST_BYTES:
                    self._is_long = True
                    self._start_response(*self._head)
                    return _Long(self._admission, int(self._head[0][:3]), self._said, rest, chunks)
            _close(chunks)
            status, headers = self._head
            response = Response(int(status[:3]), headers, b"".join(self._said))
        except BaseException:
            try:
                _close(chunks)
            finally:
                self._admission.fail()
            raise
        try:
            return _sent(self._admission.answer(response), self._start_response, status)
        finally:
            self._admission.leave()

    def _begin(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        if exc_info and self._is_long:
            raise exc_info[1].with_traceback(exc_info[2])  # as a server does once the client has the beginning
        if exc_info:
            self._said.clear()  # nothing is sent yet: the error page replaces the response so far
        self._head = (status, headers)
        return self._said.append


class _Long:
    """A response too long to store: passes it on as it comes, and ends the request with it."""

    def __init__(
        self, admission: Admission, status: int, said: list[bytes], rest: Iterator[bytes], chunks: Iterable[bytes]
    ) -> None:
        self._admission = admission
        self._status = status
        self._said = said
        self._rest = rest
        self._chunks = chunks
        self._failed = self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield b"".join(self._said)
        try:
            yield from self._rest
        except Exception:
            self._failed = True
            raise

    def close(self) -> None:
        # If the client disconnects, the work must not run again: the application had begun to respond.
        if not self._closed:
            self._closed = True
            try:
                _close(self._chunks)
            finally:
                self._admission.fail() if self._failed else self._admission.answered(self._status)
                self._admission.leave()


def _headers(environ: Environ) -> dict[str, str]:
    headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name[:5] == "HTTP_"}
    if environ.get("CONTENT_TYPE"):
        headers["content-type"] = environ["CONTENT_TYPE"]
    return headers


def _body(environ: Environ, at_most: int) -> bytes | None:
    """The body, cut off at *at_most* bytes; None if the client stopped half-way."""
    announced = environ.get("CONTENT_LENGTH")
    if announced:
        at_most = min(at_most, int(announced))
    elif not environ.get("wsgi.input_terminated"):
        return b""
    body = b""
    while len(body) < at_most and (piece := environ["wsgi.input"].read(at_most - len(body))):
        body += piece
    return None if announced and len(body) < at_most else body


def _sent(response: Response, start_response: StartResponse, status: str = "") -> Iterable[bytes]:
    if not status.startswith(str(response.status)):
        status = f"{response.status} {_PHRASES.get(response.status, 'Status')}"
    start_response(status, list(response.headers))
    return [response.body]


def _close(chunks: Any) -> None:
    if hasattr(chunks, "close"):
        chunks.close()
