"""The service's side of HTTP: who may come in, and what a repetition is answered.

A request is admitted in this order, before the application sees it:

1. with a token: it waits for its turn at the resource, and raises the resource's mark; refused if that is higher
2. with an idempotency key: the key is claimed; one that is done is answered what the first was answered

The end of the request ends both. Everything is kept in a store of taskguard, through a `Guard`.
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
from taskguard.fencing.http_marks import Marks, marks_in
from taskguard.guard import Guard
from taskguard.protocol.names import shortened
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import TOKEN_LIMIT, Held
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot

__all__ = ["Receiver", "anyone", "by_authorization", "by_header_or_path"]

T = TypeVar("T")
Steps: TypeAlias = Generator[float, None, T]
"""Yields how many seconds to wait before it is gone on with: whoever goes on with it knows how to wait."""

DAY = 86400.0
_READING = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_PASSING = frozenset({401, 403, 407, 408, 409, 421, 423, 425, 429})
"""Answers that say "not now" or "not you": the same request may be answered otherwise later, so they are not kept."""


def by_header_or_path(request: Request) -> str:
    """What the sender says that its token is for; else the path."""
    named = request.headers.get(RESOURCE.lower())
    return unquote(named) if named else request.path


def by_authorization(request: Request) -> str:
    """For callers whose Authorization never changes between two tries, as an API key; not for tokens that expire."""
    return request.headers.get("authorization", "")


def anyone(request: Request) -> str:
    """For a service with one caller, or with callers that may see each other's answers."""
    return ""


class Receiver:
    """Decides on requests. Give it to `taskguard.fencing.wsgi.Fenced` or `taskguard.fencing.asgi.Fenced`.

    *caller* says whose an idempotency key is. It must be said, for nobody else knows: were it always anyone, a caller
    could be sent another one's answer; were it the Authorization, a token renewed between two tries would do the work
    twice.
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
        marks: Marks | None = None,
    ) -> None:
        unknown = set(required) - {TOKEN, IDEMPOTENCY_KEY}
        if unknown:
            raise ConfigurationError(f"required= takes {TOKEN!r} and {IDEMPOTENCY_KEY!r}, not {unknown.pop()!r}")
        self.guard = Guard(guard) if isinstance(guard, str) else guard
        self.max_body = max_body
        self._marks = marks or marks_in(self.guard.store, keep_marks_for)
        self._resource = resource
        self._caller = caller
        self._required = required
        self._wait_up_to = wait_up_to
        # "continue": a server's thread is not interrupted. Who was replaced learns it at the end.
        self._turns = Policy.of(lease=lease, on_lost="continue")
        self._answers = Policy.of(lease=lease, on_lost="continue", on_done="reuse", keep_for=keep_for)

    def concerns(self, method: str, headers: Mapping[str, str]) -> bool:
        """Whether this request is to be admitted: it may change something, and says so or ought to."""
        if method.upper() in _READING:
            return False
        return bool(self._required) or TOKEN.lower() in headers or IDEMPOTENCY_KEY.lower() in headers

    def too_large(self) -> Response:
        detail = f"a request with these headers may have {self.max_body} bytes"
        return problem(413, "too-large", "The body is too large to be compared", detail)

    def cut_off(self) -> Response:
        detail = "the body ended before it had the length that was announced; nothing was done"
        return problem(400, "cut-off", "The body is not all there", detail)

    def admit(self, request: Request) -> Admission | Response:
        """Let the request in, or answer it. Asks the store, and may wait for the resource's turn."""
        steps = self.admitting(request)
        while True:
            try:
                pause = next(steps)
            except StopIteration as end:
                answer: Admission | Response = end.value
                return answer
            sleep(pause)

    def admitting(self, request: Request) -> Steps[Admission | Response]:
        """The same, for a caller that does not sleep in a thread. One that goes no further closes it."""
        admission = Admission(self)
        try:
            refusal = self._malformed(request) or (yield from self._take_turn(request, admission))
            refusal = refusal or self._claim_key(request, admission)
            if refusal is None:
                admission.check()
        except LeaseLostError:
            refusal = admission.replaced()
        except StoreError as error:
            refusal = problem(503, "store", "It cannot be known whether this may be done", str(error), retry_after=1)
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
            return problem(400, "bad-token", f"{TOKEN} is no token", "a token is a positive whole number below 2**53")
        key = request.headers.get(IDEMPOTENCY_KEY.lower())
        if key is not None and not 0 < len(_plain(key)) <= 1000:
            return problem(400, "bad-key", f"{IDEMPOTENCY_KEY} is no key", "it has 1 to 1000 characters")
        return None

    def _take_turn(self, request: Request, admission: Admission) -> Steps[Response | None]:
        if TOKEN.lower() not in request.headers:
            return None
        token, resource = int(request.headers[TOKEN.lower()]), shortened(self._resource(request))
        # Before it waits as well: who is stale already need not take a turn from others.
        for look in ("at once", "in turn"):
            if look == "in turn":
                admission.turn = yield from self._wait_for_turn(f"http-turn:{resource}")
                if admission.turn is None:
                    detail = f"{resource} is being changed by another request"
                    return problem(409, "busy", "Another request is in progress", detail, retry_after=1)
            mark = self._marks.raise_to(resource, token)
            if mark > token:
                detail = f"token {token} was refused: {resource} has seen token {mark}, so a newer holder was there"
                title = "A newer holder was here"
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
            detail = "this key came with another request before; use a new one for other work"
            return problem(422, "key-reused", "This key is another request's", detail)
        if isinstance(answer, Held):
            detail = "the first request with this key has no answer yet; ask again for it"
            return problem(409, "in-progress", "The first request is in progress", detail, retry_after=1)
        if answer.outcome is None:
            detail = "this was done before; its answer was too large to be kept, and it is not done again"
            return problem(409, "answer-not-kept", "Done before", detail)
        kept = Response.decoded(answer.outcome)
        return Response(kept.status, [*kept.headers, ("Idempotency-Replayed", "true")], kept.body)


class Admission:
    """A request that was let in; it ends by one of the methods below, and then by `leave`."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.turn: Work | None = None
        self.work: Work | None = None

    def check(self) -> None:
        """Raise `LeaseLostError` if this process was stopped for so long that another one has taken its place."""
        for granted in (self.turn, self.work):
            if granted is not None:
                granted.fence.check()

    def answer(self, response: Response) -> Response:
        """Keep the response, and say what is to be sent: another one if this request was replaced meanwhile."""
        if _may_be_other_later(response.status):
            self._give_up()
            return response
        return response if self._done(response.encoded()) else self.replaced()

    def answered(self, status: int) -> None:
        """The response is too large to be kept, or not all of it is there: only the fact is kept."""
        if _may_be_other_later(status):
            self._give_up()
        else:
            self._done(None)

    def fail(self) -> None:
        """Nothing was done, as far as the application says: the same request may come again, unless it was answered."""
        self._give_up()
        self.leave()

    def leave(self) -> None:
        """The application has nothing more to do: the next request may come to the resource."""
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
            return True  # a store that is silent now does not take the answer from the client: its work is done

    def replaced(self) -> Response:
        """What is answered to a request whose place another one has taken."""
        detail = "this request took so long that another one took its place; ask again for its answer"
        return problem(409, "in-progress", "Another request is in progress", detail, retry_after=1)


def _may_be_other_later(status: int) -> bool:
    return status >= 500 or status in _PASSING


def _plain(key: str) -> str:
    """The key without the quotes that the header's draft asks for, and many senders leave out."""
    key = key.strip()
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
