"""A request and a response, as the receiver sees them, whichever interface the server speaks."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskguard.protocol.outcomes import MOST_BYTES

_NOT_KEPT = frozenset({"connection", "date", "keep-alive", "server", "trailer", "transfer-encoding", "upgrade"})


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes = b""

    @property
    def fingerprint(self) -> str:
        """Differs for two requests that ask for different things."""
        kind = self.headers.get("content-type", "")
        head = json.dumps([self.method, self.path, self.query, kind, hashlib.sha256(self.body).hexdigest()])
        return hashlib.sha256(head.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    def encoded(self) -> bytes | None:
        """As it is kept; None if it is too large for that."""
        kept = [[name, value] for name, value in self.headers if name.lower() not in _NOT_KEPT]
        text = json.dumps([self.status, kept, b64encode(self.body).decode()], separators=(",", ":")).encode()
        return text if len(text) <= MOST_BYTES else None

    @classmethod
    def decoded(cls, kept: bytes) -> Response:
        status, headers, body = json.loads(kept)
        return cls(status, [(name, value) for name, value in headers], b64decode(body))


def problem(
    status: int, kind: str, title: str, detail: str, *, retry_after: int | None = None, **facts: Any
) -> Response:
    """A refusal that a program can read (RFC 9457)."""
    said = {"type": f"urn:taskguard:{kind}", "title": title, "status": status, "detail": detail, **facts}
    body = json.dumps(said).encode()
    headers = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
    if retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    return Response(status, headers, body)
