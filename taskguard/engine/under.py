"""Run a body under its claims and record how it ended: for `Guard`, every queue and the test kit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from taskguard.engine.value import Value
from taskguard.engine.work import KeptAlive, Work, names_claim
from taskguard.errors import LeaseLostError, StoreError
from taskguard.fence import current_fences

T = TypeVar("T")


class Ended(Value):
    """How a body ended, as `ended_by` or the queue's adapter reads it."""

    def __init__(self, kind: str, **more: Any) -> None:
        super().__init__(kind=kind, **more)

    kind: Literal[
        "returned",
        "failed",
        "retry",  # its next message is sent once its lease has ended
        "goes_back",  # the broker redelivers the same message
        "ignored",
        "rejected",
        "released",  # the work is neither done nor failed
        "lost",
        "cancelled",  # a claim around it was lost: the run had to stop
        "not_begun",  # the queue starts it again, with its full time limit
    ]
    value: Any = None
    outcome: bytes | None = None
    """What is kept of the value."""
    error: BaseException | None = None
    delay: float = 0.0
    """Seconds until a worker may take the next message."""
    seconds: float | None = None
    """How long its queued entry waits for a worker, if not the queue's default."""
    floor: int = 0
    """The token that a resource has seen, if it refused this run's."""
    comes_again: bool = True
    """If the lease was lost: whether the queue still leaves the job to this worker."""


def run_claimed(work: Work, body: Callable[[], T], *, matters: bool = True) -> T:
    """Run *body* under one claim and record how it ended. The lease is renewed until the store has answered.

    Raises `LeaseLostError` if the body returned and the store refuses that end; and if *matters*, `StoreError` if the
    store cannot record it.
    """
    with KeptAlive(work):
        try:
            value = run_under((work,), body)
        except BaseException as error:
            # If the error means that a claim around this one was lost, the work inside has not failed.
            is_cancelled = any(names_claim(error, fence.key, fence.token) for fence in current_fences())
            settle(work, Ended("cancelled", error=error) if is_cancelled else ended_by((work,), error))
            raise
        if not settle(work, Ended("returned", value=value), matters=matters):
            raise work.loss()
        return value


def run_under(works: Sequence[Work], body: Callable[[], T]) -> T:
    """Call *body* while all claims are kept alive; the last one's fence is the current one."""
    with works[0] as fence:
        if works[0].holding.remaining <= 0:
            fence.check()  # the process was suspended since the grant, and may be superseded
        return run_under(works[1:], body) if len(works) > 1 else body()


def ended_by(works: Sequence[Work], error: BaseException, *, failures: type[BaseException] = Exception) -> Ended:
    """How the body ended that raised *error*. An error that is not one of *failures* ends the process, not the job."""
    return loss_in(works, error) or Ended("failed" if isinstance(error, failures) else "released", error=error)


def loss_in(works: Sequence[Work], error: BaseException) -> Ended | None:
    """How the body ended if *error* means that a claim was lost, or refused by a resource; else None."""
    if works[-1].is_own_loss(error):
        return Ended("lost", error=error, floor=works[-1].floor_after(error))
    if isinstance(error, LeaseLostError) and any(work.is_own_loss(error) for work in works[:-1]):
        return Ended("cancelled", error=error)
    return None


def settle(work: Work, ended: Ended, *, matters: bool = False) -> bool:
    """Record how the body of *work* ended; False if the store refuses the end, because another run has started.

    If the store fails, the guard reports it, and the lease expires: the caller gets the body's result, unless
    *matters*.
    """
    try:
        if ended.kind == "returned":
            accepted = work.succeed(ended.value)
        elif ended.kind == "failed" and ended.error is not None:
            accepted = work.fail(ended.error)
        else:
            accepted = work.release()
    except StoreError:
        if matters:
            raise
        accepted = True
    work.next_floor = ended.floor if accepted else 0
    return accepted


def raising(error: BaseException) -> Callable[[], Any]:
    """A body that only raises *error*: for a job that fails before its own body can start."""

    def body() -> Any:
        raise error

    return body


def known_by(key: str, occurrence: str, *, given: str = "", slot: str = "", is_reused: bool = False) -> tuple[str, str]:
    """What identifies the same work in two runs: for an API that takes an idempotency key, and for `fence.once`.

    *given* is the caller's own key. Another function may be called with the same key: its effects are different ones.
    """
    by_key = slot or (key if is_reused else occurrence)
    return given or by_key, key if given else by_key
