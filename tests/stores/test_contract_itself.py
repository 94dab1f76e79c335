"""The contract is worth what it catches: stores that break one promise each, as real locks out there do."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from taskguard.protocol.rules import Kept, Rules, Step, stamp_of
from taskguard.protocol.store import Claim, Entry, Lease
from taskguard.stores.memory import MemoryStore
from taskguard.testing import StoreContract
from taskguard.testing.clock import FakeClock


class TokenFromACounterThatRestarts(MemoryStore):
    breaks = 2

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._rules.next_token = self._next  # type: ignore[method-assign]

    def _next(self, ask: Claim, entry: Kept | None, now: int) -> int:
        if not self._kept.items:  # wiped: where the counter was kept, too
            self._counter = count(1)
        return max(next(self._counter), ask.floor + 1, entry.token + 1 if entry else 0)


class DeletesThenSets(MemoryStore):
    breaks = 1

    def claim(self, claim: Claim, /) -> Any:
        changes: dict[Any, Any] = {}
        view = self._view(changes, self._clock())
        own = view.receipt(claim.key, claim.owner)
        answer = view.save(claim.key, self._rules.claim(claim, view.entry(claim.key), own, None, view.now))
        time.sleep(0.001)  # another process comes in between
        self._kept.items.update(changes)
        return answer


class ComparesTheOwnerNotTheToken(MemoryStore):
    breaks = 3

    class rules(Rules):
        def is_newest(self, claimant: Any, entry: Kept) -> bool:
            return entry.owner == claimant.owner


class AdoptsARunningEntry(MemoryStore):
    breaks = 6

    class rules(Rules):
        def may_adopt(self, ask: Claim, entry: Kept, now: int) -> bool:
            return entry.owner == ask.owner


class UsesTheClientsClock(MemoryStore):
    breaks = 7

    def __init__(self, **options: Any) -> None:
        super().__init__(clock=lambda: time.time_ns() // 1000)


class ForgetsTheFinisher(MemoryStore):
    breaks = 5

    class rules(Rules):
        def complete(self, *args: Any) -> Step[bool]:
            return replace(super().complete(*args), receipt=None)


class ForgetsFailures(MemoryStore):
    breaks = 5

    class rules(Rules):
        def release(self, *args: Any, **options: Any) -> Step[bool]:
            return replace(super().release(*args, **options), receipt=None)


class ClaimIsNotIdempotent(MemoryStore):
    breaks = 4

    class rules(Rules):
        def is_repeat(self, ask: Claim, entry: Kept) -> bool:
            return False


class RepeatedEndsAreRefused(MemoryStore):
    breaks = 4

    class rules(Rules):
        def told_before(self, *args: Any) -> Step[bool]:
            return Step(False)


class ReleaseForgetsTheLastToken(MemoryStore):
    breaks = 2

    def release(self, *args: Any, **options: Any) -> bool:
        released = super().release(*args, **options)
        entry = self._kept.items.get(args[0].key)
        if released and entry and entry.state == "free":
            del self._kept.items[args[0].key]
        return released


class RetentionNeverEnds(MemoryStore):
    breaks = 8

    def _is_there(self, kept: Any, now: int) -> bool:
        return isinstance(kept, Kept) or super()._is_there(kept, now)


class ReceiptsNeverEnd(MemoryStore):
    breaks = 8

    def _is_there(self, kept: Any, now: int) -> bool:
        return not isinstance(kept, Kept) or super()._is_there(kept, now)


class RenewRevivesAReplacedLease(MemoryStore):
    breaks = 3

    class rules(Rules):
        def renew(self, lease: Lease, seconds: float, entry: Kept | None, now: int) -> Step[bool]:
            if entry is None:
                return Step(False)
            return Step(True, replace(entry, state="running", owner=lease.owner, attempt=lease.attempt))


class AdoptsUnderTheSameToken(MemoryStore):
    breaks = 2

    class rules(Rules):
        def next_token(self, ask: Claim, entry: Kept | None, now: int) -> int:
            adopted = entry is not None and entry.state == "queued" and entry.owner == ask.owner
            return entry.token if adopted and entry else super().next_token(ask, entry, now)


class SkipsWithoutAReceipt(MemoryStore):
    breaks = 5

    class rules(Rules):
        def held(self, ask: Claim, entry: Kept, now: int) -> Any:
            return replace(super().held(ask, entry, now), receipt=None)


class LeavesAJoinerAlone(MemoryStore):
    breaks = 5

    class rules(Rules):
        def claim(self, ask: Claim, entry: Any, own: Any, twin: Any, now: int) -> Any:
            return super().claim(ask, entry, own, None, now)


class ForgetsThatAJoinerHasEnded(MemoryStore):
    breaks = 5

    class rules(Rules):
        def joined(self, *known: Any) -> Any:
            return replace(super().joined(*known), receipt=None)


class AnswersAJoinerThatRuns(MemoryStore):
    breaks = 5

    class rules(Rules):
        def is_running(self, ask: Claim, entry: Kept | None, now: int) -> bool:
            return False


class ReplacesAnEndByARelease(MemoryStore):
    breaks = 5

    class rules(Rules):
        def keeps_end(self, own: Any, ending: Any, anyway: bool) -> bool:
            return anyway and super().keeps_end(own, ending, anyway)


class ForgetsAReleaseAfterAMinute(MemoryStore):
    breaks = 4

    def release(self, claimant: Any, ending: Any, /, *, anyway: bool = False) -> bool:
        return super().release(claimant, replace(ending, repeat_for=0.0), anyway=anyway)


class ActsOnAbsentEntries(MemoryStore):
    breaks = 3

    class rules(Rules):
        def complete(self, claimant: Any, ending: Any, entry: Any, own: Any, now: int) -> Step[bool]:
            return Step(True) if entry is None else super().complete(claimant, ending, entry, own, now)


class DoesNotCountStarts(MemoryStore):
    breaks = 6

    class rules(Rules):
        def grant(self, ask: Claim, entry: Kept | None, now: int) -> Any:
            return super().grant(ask, replace(entry, starts=0, deaths=()) if entry else None, now)


class EveryDuplicatePublishes(MemoryStore):
    breaks = 1

    class rules(Rules):
        def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[None, bool]:
            return None, super().note_copy(ask, entry, now)[1]


class NamesACopyBeforeItIsPublished(MemoryStore):
    breaks = 1

    class rules(Rules):
        def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
            return super().note_copy(replace(ask, copy_for=ask.copy_for or 1.0, stamp=stamp_of(entry)), entry, now)


class NamesACopyThatMayBeGone(MemoryStore):
    breaks = 1

    class rules(Rules):
        def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
            return super().note_copy(replace(ask, stamp=ask.stamp and stamp_of(entry)), entry, now)


class MarksARunningEntry(MemoryStore):
    breaks = 3

    class rules(Rules):
        def mark(self, *args: Any, **options: Any) -> Step[bool]:
            return self.requeue(*args, **options, keep_starts=True)


class MarksAllOrNothing(MemoryStore):
    breaks = 3

    def mark(self, published: Any, /, *, copy_for: float) -> list[bool]:
        before = dict(self._kept.items)
        marked = super().mark(published, copy_for=copy_for)
        if not all(marked):
            self._kept.items = before
        return [all(marked)] * len(marked)


class FreesWhatRunsElsewhere(MemoryStore):
    breaks = 5

    class rules(Rules):
        def may_free(self, claimant: Any, entry: Kept, anyway: bool) -> bool:
            return entry.owner == claimant.owner if anyway else super().may_free(claimant, entry, anyway)


class EntryEndsWithItsLease(MemoryStore):
    breaks = 3

    def _is_there(self, kept: Any, now: int) -> bool:
        return super()._is_there(kept, now) and kept.until > now


class ScanShowsOnePage(MemoryStore):
    breaks = 8

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        return iter(list(super().scan(prefix))[:10])


BROKEN = [
    thing
    for thing in list(globals().values())
    if isinstance(thing, type) and issubclass(thing, MemoryStore) and thing is not MemoryStore
]


def failures(kind: type[MemoryStore], tests: str = "test_") -> list[str]:
    """The names of the contract's tests, of those that begin so, that this store fails."""
    found = inspect.getmembers(StoreContract, inspect.isfunction)
    return [name for name, test in found if name.startswith(tests) and not holds(kind, test)]


def holds(kind: type[MemoryStore], test: Callable[..., None]) -> bool:
    clock = FakeClock()
    rules = getattr(kind, "rules", Rules)()
    store = kind(clock=clock, rules=rules)
    fixtures: dict[str, Any] = {
        "store": store,
        "elapse": time.sleep if kind is UsesTheClientsClock else clock.advance,
        "opener": None,
        "wipe": lambda: store._kept.items.clear(),
        "restart": lambda: None,
    }
    wanted = list(inspect.signature(test).parameters)[1:]
    try:
        test(StoreContract(), **{name: fixtures[name] for name in wanted})
    except Exception:
        return False
    return True


def test_the_contract_has_tests_of_every_promise():
    names = [name for name, _ in inspect.getmembers(StoreContract, inspect.isfunction)]

    assert [n for n in range(1, 9) if not any(name.startswith(f"test_promise_{n}_") for name in names)] == []


def test_a_sound_store_fails_nothing():
    assert failures(MemoryStore) == []


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_store_is_caught_by_a_test_that_names_the_promise(kind: type[MemoryStore]):
    assert failures(kind, f"test_promise_{kind.breaks}_")
