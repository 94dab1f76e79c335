"""Run a body under its claims, and read how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from taskguard.engine.effects import Ended
from taskguard.errors import LeaseLostError

if TYPE_CHECKING:
    from taskguard.engine.work import Work

T = TypeVar("T")


def run_under(works: Sequence[Work], body: Callable[[], T]) -> T:
    """Call *body* while all claims are kept alive; the last one's fence is the current one."""
    if not works:
        return body()
    with works[0] as fence:
        if fence.remaining <= 0:
            fence.check()  # it slept since the grant, and may have been replaced
        return run_under(works[1:], body)


def loss_in(works: Sequence[Work], error: BaseException) -> Ended | None:
    """How the body ended if *error* says that one of its claims was lost, or refused by a resource."""
    if works[-1].is_own_loss(error):
        return Ended("lost", error=error, floor=works[-1].floor_after(error))
    if isinstance(error, LeaseLostError) and any(work.is_own_loss(error) for work in works[:-1]):
        return Ended("cancelled", error=error)
    return None


def ended_by(works: Sequence[Work], error: BaseException) -> Ended:
    return loss_in(works, error) or Ended("failed", error=error)


def raising(error: BaseException) -> Callable[[], Any]:
    """A body that does nothing but raise *error*: for a job that fails before its own could begin."""

    def body() -> Any:
        raise error

    return body


def known_by(key: str, occurrence: str, *, given: str = "", slot: str = "", is_reused: bool = False) -> tuple[str, str]:
    """What makes two runs the same work: for an API that takes an idempotency key, and for `fence.once`.

    *given* is the caller's own key. Another function may be called with the same one: its effects are others.
    """
    by_key = slot or (key if is_reused else occurrence)
    return given or by_key, key if given else by_key
