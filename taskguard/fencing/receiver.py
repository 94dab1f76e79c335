"""The service's side of HTTP: refuse stale holders, and replay the response to a repeated request.

Before the application sees a request, the receiver

1. if it has a token: waits for its turn at the resource and raises the resource's high-water mark; if the mark is
   higher than the token, refuses the request
2. if it has an idempotency key: claims the key; if the key is done, replays the stored response

The end of the request ends both. A store of taskguard holds everything, through a `Guard`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Generator, Mapping
from time import sleep
from typing import TypeAlias, TypeVar
from urllib.parse import unquote

from taskguard.engine.work import Work
from taskguard.errors import ConfigurationError, LeaseLostError, StoreError
from taskguard.fencing.exchange import Request, Response, problem
from taskguard.fencing.http import IDEMPOTENCY_KEY, RESOURCE, STALE, TOKEN
from taskguard.fencing.http_high_water import HighWaterMarks, high_water_marks
from taskguard.guard import Guard
from taskguard.protocol.names import shortened
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import TOKEN_LIMIT, Held
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot

__all__ = ["Receiver", "anyone", "by_authorization", "by_header_or_path"]

T = TypeVar("T")
Steps: TypeAlias = Generator[float, None, T]
"""Yields the seconds to wait before the next step; the caller chooses how to wait."""

DAY = 86400.0
_READING = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_TRANSIENT = frozenset({401, 403, 407, 408, 409, 421, 423, 425, 429})
"""Statuses that mean "not now" or "not you": a retry may get another response, so the receiver does not store them."""


def by_header_or_path(request: Request) -> str:
    """The resource that the client names in its header; else the path."""
    named = request.headers.get(RESOURCE.lower())
    return unquote(named) if named else request.path


def by_authorization(request: Request) -> str:
    """For callers whose Authorization stays the same in a retry, such as an API key; not for tokens that expire."""
    return request.headers.get("authorization", "")


def anyone(request: Request) -> str:
    """For a service with one caller, or whose callers may see each other's responses."""
    return ""


class Receiver:
    """Decides on requests. Give it to `taskguard.fencing.wsgi.Fenced` or `taskguard.fencing.asgi.Fenced`.

    *caller* returns whom an idempotency key belongs to. It has no default, because none is safe: with `anyone` a caller
    could get another caller's response; with the Authorization header, a token renewed between two retries would run
    the work twice.
    """

    def __init__(
        self,
        guard: Guard | str,
        *,
        caller: Callable[[Request], str],
        resource: Callable[[Request], str] = by_header_or_path,
        required: Collection[str] = (),
        keep_for: float = DAY,
        keep_marks_for: float = 7 * DAY,
        lease: float = 30.0,
        wait_up_to: float = 5.0,
        max_body: int = 1024 * 1024,
        marks: HighWaterMarks | None = None,
    ) -> None:
        unknown = set(required) - {TOKEN, IDEMPOTENCY_KEY}
        if unknown:
            raise ConfigurationError(f"required= takes {TOKEN!r} and {IDEMPOTENCY_KEY!r}, not {unknown.pop()!r}")
        self.guard = Guard(guard) if isinstance(guard, str) else guard
        self.max_body = max_body
        self._marks = marks or high_water_marks(self.guard.store, keep_marks_for)
        self._resource = resource
        self._caller = caller
        self._required = required
        self._wait_up_to = wait_up_to
        # "continue": do not interrupt a server's thread. A superseded request learns it when it completes.
        self._turns = Policy.of(lease=lease, on_lost="continue")
        self._answers = Policy.of(lease=lease, on_lost="continue", on_done="reuse", keep_for=keep_for)

    def concerns(self, method: str, headers: Mapping[str, str]) -> bool:
        """Whether the receiver must admit this request: it may write, and has one of the headers or requires one."""
        if method.upper() in _READING:
            return False
        return bool(self._required) or TOKEN.lower() in headers or IDEMPOTENCY_KEY.lower() in headers

    def too_large(self) -> Response:
        detail = f"the body of a request with these headers may have at most {self.max_body} bytes"
        return problem(413, "too-large", "The body is too large to compare", detail)

    def cut_off(self) -> Response:
        detail = "the body is shorter than its Content-Length; nothing was done"
        return problem(400, "cut-off", "The body is incomplete", detail)

    def admit(self, request: Request) -> Admission | Response:
        """Admit the request, or respond to it. Calls the store, and may wait for its turn at the resource."""
        steps = self.admitting(request)
        while True:
            try:
                pause = next(steps)
            except StopIteration as end:
                answer: Admission | Response = end.value
                return answer
            sleep(pause)

    def admitting(self, request: Request) -> Steps[Admission | Response]:
        """Like `admit`, for a caller that waits in its own way. A caller that stops early must close the generator."""
        admission = Admission(self)
        try:
            refusal = self._malformed(request) or (yield from self._take_turn(request, admission))
            refusal = refusal or self._claim_key(request, admission)
            if refusal is None:
                admission.check()
        except LeaseLostError:
            refusal = admission.replaced()
        except StoreError as error:
            refusal = problem(503, "store", "The store is unavailable", str(error), retry_after=1)
        except BaseException:
            admission.fail()
            raise
        if refusal is None:
            return admission
        admission.fail()
        return refusal

    def _malformed(self, request: Request) -> Response | None:
        for name in self._required:
            if not request.headers.get(name.lower()):
                return problem(400, "missing-header", f"{name} is missing", f"send {name} with this request")
        token = request.headers.get(TOKEN.lower())
        if token is not None and not (re.fullmatch(r"[0-9]{1,16}", token) and 0 < int(token) < TOKEN_LIMIT):
            return problem(
                400, "bad-token", f"{TOKEN} is not a token", "a token is a positive whole number below 2**53"
            )
        key = request.headers.get(IDEMPOTENCY_KEY.lower())
        if key is not None and not 0 < len(_plain(key)) <= 1000:
            return problem(400, "bad-key", f"{IDEMPOTENCY_KEY} is not a key", "a key has 1 to 1000 characters")
        return None

    def _take_turn(self, request: Request, admission: Admission) -> Steps[Response | None]:
        if TOKEN.lower() not in request.headers:
            return None
        token, resource = int(request.headers[TOKEN.lower()]), shortened(self._resource(request))
        # Also before the wait: a request that is already stale need not take a turn.
        for look in ("at once", "in turn"):
            if look == "in turn":
                admission.turn = yield from self._wait_for_turn(f"http-turn:{resource}")
                if admission.turn is None:
                    detail = f"another request is changing {resource}"
                    return problem(409, "busy", "Another request is in progress", detail, retry_after=1)
            mark = self._marks.raise_to(resource, token)
            if mark > token:
                detail = f"token {token} is stale: {resource} has seen token {mark} of a newer holder"
                title = "A newer holder wrote here"
                return problem(STALE, "stale-token", title, detail, resource=resource, token=token, mark=mark)
        return None

    def _wait_for_turn(self, key: str) -> Steps[Work | None]:
        claim = self.guard.new_claim(key, self.guard.new_owner(), self._turns)
        give_up = since_boot() + self._wait_up_to
        for pause in pauses():
            answer = self.guard.begin(claim, self._turns, report=False)
            if isinstance(answer, Work):
                answer.keep_alive()
                return answer
            if since_boot() + pause >= give_up:
                break
            yield pause
        return None

    def _claim_key(self, request: Request, admission: Admission) -> Response | None:
        given = request.headers.get(IDEMPOTENCY_KEY.lower())
        if given is None:
            return None
        caller = hashlib.sha256(self._caller(request).encode()).hexdigest()[:16]
        key = f"http:{caller}:{shortened(_plain(given))}"
        claim = self.guard.new_claim(key, self.guard.new_owner(), self._answers, payload=request.fingerprint)
        answer = self.guard.begin(claim, self._answers, idempotency_key=_plain(given))
        if isinstance(answer, Work):
            answer.keep_alive()
            admission.work = answer
            return None
        if answer.payload != request.fingerprint:
            detail = "an earlier, different request used this key; use a new key for different work"
            return problem(422, "key-reused", "This key belongs to another request", detail)
        if isinstance(answer, Held):
            detail = "the first request with this key is still running; retry to get its response"
            return problem(409, "in-progress", "The first request is in progress", detail, retry_after=1)
        if answer.outcome is None:
            detail = "an earlier request did this work; its response was not stored, and the work does not run again"
            return problem(409, "answer-not-kept", "Already done", detail)
        kept = Response.decoded(answer.outcome)
        return Response(kept.status, [*kept.headers, ("Idempotency-Replayed", "true")], kept.body)


class Admission:
    """An admitted request. Call one of the methods below when it ends, and then `leave`."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.turn: Work | None = None
        self.work: Work | None = None

    def check(self) -> None:
        """Raise `LeaseLostError` if this process was stopped so long that another request took over."""
        for granted in (self.turn, self.work):
            if granted is not None:
                granted.fence.check()

    def answer(self, response: Response) -> Response:
        """Store the response, and return the one to send: a refusal if another request took over."""
        if _is_transient(response.status):
            self._give_up()
            return response
        return response if self._done(response.encoded()) else self.replaced()

    def answered(self, status: int) -> None:
        """Record only completion: the response is too large to store, or incomplete."""
        if _is_transient(status):
            self._give_up()
        else:
            self._done(None)

    def fail(self) -> None:
        """The application failed: a retry of this request may run, unless it has a recorded response."""
        self._give_up()
        self.leave()

    def leave(self) -> None:
        """The application has finished: the next request may use the resource."""
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.give_up()

    def _give_up(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work.give_up()

    def _done(self, outcome: bytes | None) -> bool:
        work, self.work = self.work, None
        try:
            return work is None or work.complete("succeeded", outcome)
        except StoreError:
            return True  # the work is done: send the response even if the store is unavailable now

    def replaced(self) -> Response:
        """The response to a request that another request superseded."""
        detail = "this request took so long that another one took over; retry to get its response"
        return problem(409, "in-progress", "Another request is in progress", detail, retry_after=1)


def _is_transient(status: int) -> bool:
    return status >= 500 or status in _TRANSIENT


def _plain(key: str) -> str:
    """The key without the quotes that the header's draft requires and many clients leave out."""
    key = key.strip()
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
