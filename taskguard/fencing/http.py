"""The client's side of HTTP: headers with which a service refuses a stale holder or recognises a repeated request."""

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
"""Precondition Failed: the resource has seen a higher token."""

Request = TypeVar("Request")

_PLAIN = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters that a header may contain besides letters and digits. `header_text` writes the rest as %XX, a space too:
at the end of a header it would be lost."""


class FenceAuth:
    """Sends the fence with each request: `httpx.post(url, auth=FenceAuth())`, and the same with requests.

    Without *fence* it sends that of the body that makes the request. It calls `fence.check()` first, which raises
    `LeaseLostError` before anything is sent. Give each request of a body its own *name*: each needs its own idempotency
    key. The service compares tokens per *resource*, by default the fence's key.
    """

    def __init__(self, fence: Fence | None = None, *, name: str = "", resource: str = "") -> None:
        self._fence = fence
        self._name = name
        self._resource = resource

    def __call__(self, request: Request) -> Request:
        # httpx and requests both take a function of the request as auth, so this module imports neither.
        fence = self._fence or current_fence()
        if fence is None:
            raise ConfigurationError("there is no current fence here; pass FenceAuth the fence of the request")
        fence.check()
        headers: Any = request.headers  # type: ignore[attr-defined]
        headers.update(fence.headers())
        if self._name:
            headers[IDEMPOTENCY_KEY] += header_text(f":{self._name}")
        headers[RESOURCE] = header_text(self._resource or fence.key)
        return request


def header_text(text: str) -> str:
    """*text* in characters that a header may contain; different texts stay different."""
    return quote(text, safe=_PLAIN)


def raise_if_stale(response: Any, fence: Fence | None = None) -> None:
    """Raise `StaleFenceError` if the service refused the token; *response* comes from httpx or requests."""
    if response.status_code != STALE or "problem+json" not in response.headers.get("content-type", ""):
        return
    problem = response.json()
    if isinstance(problem, dict) and "mark" in problem:
        fence = fence or current_fence()
        key = fence.key if fence else str(problem.get("resource", ""))
        raise StaleFenceError(key, int(problem["token"]), str(problem["resource"]), int(problem["mark"]))
