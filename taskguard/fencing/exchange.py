"""A request and a response as the receiver sees them, for WSGI and ASGI alike."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskguard.protocol.outcomes import MOST_BYTES

_NOT_STORED = frozenset({"connection", "date", "keep-alive", "server", "trailer", "transfer-encoding", "upgrade"})


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes = b""

    @property
    def fingerprint(self) -> str:
        """Differs for two requests that mean different work."""
        kind = self.headers.get("content-type", "")
        head = json.dumps([self.method, self.path, self.query, kind, hashlib.sha256(self.body).hexdigest()])
        return hashlib.sha256(head.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    def encoded(self) -> bytes | None:
        """The bytes to store; None if the response is too large."""
        kept = [[name, value] for name, value in self.headers if name.lower() not in _NOT_STORED]
        text = json.dumps([self.status, kept, b64encode(self.body).decode()], separators=(",", ":")).encode()
        return text if len(text) <= MOST_BYTES else None

    @classmethod
    def decoded(cls, kept: bytes) -> Response:
        status, headers, body = json.loads(kept)
        return cls(status, [(name, value) for name, value in headers], b64decode(body))


def problem(
    status: int, kind: str, title: str, detail: str, *, retry_after: int | None = None, **more: Any
) -> Response:
    """A refusal in problem+json (RFC 9457)."""
    facts = {"type": f"urn:taskguard:{kind}", "title": title, "status": status, "detail": detail, **more}
    body = json.dumps(facts).encode()
    headers = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
    if retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    return Response(status, headers, body)
