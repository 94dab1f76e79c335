"""The sender's side of HTTP: headers by which a service can refuse a stale holder, or recognise a repetition."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import quote

from taskguard.errors import ConfigurationError, StaleFenceError
from taskguard.fence import Fence, current_fence

__all__ = ["FenceAuth", "raise_if_stale"]

TOKEN = "X-Fencing-Token"  # noqa: S105 - a header's name
RESOURCE = "X-Fencing-Resource"
IDEMPOTENCY_KEY = "Idempotency-Key"
STALE = 412
"""Precondition Failed: a higher token was here."""

Request = TypeVar("Request")

_PLAIN = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""What may stand in a header as it is, beside letters and digits; the rest is written as %XX, also a space: at the end
of a header it would be lost."""


class FenceAuth:
    """Sends the fence with each request: `httpx.post(url, auth=FenceAuth())`, and the same with requests.

    The fence is the one given, else that of the body that runs when the request is made. It is checked first, so
    `LeaseLostError` comes before anything is sent. *name* tells one request of a body from another: each needs an
    idempotency key of its own. *resource* is what the token is compared for; by default the fence's key.
    """

    def __init__(self, fence: Fence | None = None, *, name: str = "", resource: str = "") -> None:
        self._fence = fence
        self._name = name
        self._resource = resource

    def __call__(self, request: Request) -> Request:
        # Both libraries take a function of the request for auth; so neither is imported here.
        fence = self._fence or current_fence()
        if fence is None:
            raise ConfigurationError("no body with a fence runs here; give FenceAuth the fence that the request is for")
        fence.check()
        headers: Any = request.headers  # type: ignore[attr-defined]
        headers.update(fence.headers())
        if self._name:
            headers[IDEMPOTENCY_KEY] += header_text(f":{self._name}")
        headers[RESOURCE] = header_text(self._resource or fence.key)
        return request


def header_text(text: str) -> str:
    """*text* as it can stand in a header: the same for the same text, another for another."""
    return quote(text, safe=_PLAIN)


def raise_if_stale(response: Any, fence: Fence | None = None) -> None:
    """Raise `StaleFenceError` if the service refused the token; *response* is that of httpx or of requests."""
    if response.status_code != STALE or "problem+json" not in response.headers.get("content-type", ""):
        return
    problem = response.json()
    if isinstance(problem, dict) and "mark" in problem:
        fence = fence or current_fence()
        key = fence.key if fence else str(problem.get("resource", ""))
        raise StaleFenceError(key, int(problem["token"]), str(problem["resource"]), int(problem["mark"]))
