"""A service in a process of its own, which keeps a ledger: behind the middleware.

    python -m tests.fencing.elsewhere.server wsgi|asgi URL LEDGER LEASE

It says its port, and ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import uvicorn

from taskguard import Guard
from taskguard.fencing import asgi, wsgi
from taskguard.fencing.receiver import Receiver, by_authorization

LARGE = 200_000


class Ledger:
    """What the service does, whichever interface it speaks: each request but a reading one appends a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def serve(self, method: str, path: str, body: bytes) -> tuple[int, list[bytes]]:
        if method != "GET":
            with open(self._path, "ab") as file:
                file.write(body + b"\n")
        if path.startswith("/slow"):
            gate = self._path.with_name("gate")
            while not gate.exists():
                time.sleep(0.01)
        if path.startswith("/status/"):
            return int(path.rpartition("/")[2]), [b"said so"]
        if path.startswith("/large/"):
            return int(path.rpartition("/")[2]), [b"x" * 1000] * (LARGE // 1000)
        if path == "/crash":
            raise RuntimeError("the application failed")
        lines = len(self._path.read_bytes().splitlines())
        return 201, [json.dumps({"lines": lines}).encode()]


def wsgi_app(ledger: Ledger) -> wsgi.App:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        status, chunks = ledger.serve(method, path, environ["wsgi.input"].read(size))
        start_response(f"{status} Said", [("Content-Type", "application/json"), ("X-Made-By", "ledger")])
        return chunks

    return app


def asgi_app(ledger: Ledger) -> asgi.App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, chunks = await asyncio.to_thread(ledger.serve, scope["method"], scope["path"], body)
        headers = [(b"content-type", b"application/json"), (b"x-made-by", b"ledger")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def run_wsgi(app: wsgi.App) -> Iterator[int]:
    server = make_server("127.0.0.1", 0, app, _Server, _Quiet)
    yield server.server_port
    server.serve_forever()


def run_asgi(app: asgi.App) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="error", lifespan="off")  # type: ignore[arg-type]
        uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    kind, url, path, lease = sys.argv[1:]
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    app: Any = (wsgi_app if kind == "wsgi" else asgi_app)(Ledger(Path(path)))
    guard = Guard(url, namespace="http")
    receiver = Receiver(guard, caller=by_authorization, lease=float(lease), wait_up_to=0.3, max_body=100_000)
    app = (wsgi if kind == "wsgi" else asgi).Fenced(app, receiver)
    for port in (run_wsgi if kind == "wsgi" else run_asgi)(app):
        print(port, flush=True)


if __name__ == "__main__":
    main()
