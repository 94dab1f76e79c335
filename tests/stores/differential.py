"""Differential walks: every store is asked the same under one clock, and must answer the same to the microsecond.

The contract's walks compare a store with the rules on its own clock, so only what does not depend on time. Here the
clock is the test's: it stands still between two verbs, jumps, and may go back. A walk is a list of steps that name
earlier answers by their number, so that a walk which shows a difference can be made shorter and still means something.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from typing import Any, NamedTuple, get_args

from taskguard.protocol.rules import micros
from taskguard.protocol.store import Claim, Claimant, Ending, Held, How, Lease, Store
from tests.stores.faked_time import BEGINNING, Clock, Over, Redis, Side

KEYS = ("a", "b}", "{c}%7D", "%", "a%7d", "é☃𝄞", "*?[x]^\\", "\n\r $'\"", "x" * 300)
OWNERS = ("alice", "bob", "carol:2", "ü☃", "}{", "o" * 200)
COPIES = ("", "c1", "c2", "awaited:c1")
OUTCOMES = (None, b"", b"\x00\xff'\\", b"x" * 2000)
DURATIONS = (0.0, 1e-6, 0.001, 0.5, 1.0, 30.0, 59.999999, 60.000001, 7200.0, 315_360_000.0)
FORWARD = tuple(micros(seconds) + more for seconds in DURATIONS[1:-1] for more in (-1, 0, 1, 1000))
"""To just before, at and after the end of what was asked for a moment ago."""
BACK = tuple(-jump for jump in FORWARD)


# -- steps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Who:
    """A claimant by the number of the step that was answered with it; or one made up."""

    step: int
    by_attempt: bool = False
    """What a parent knows of its child: the attempt, not the token."""
    token_of: int = -1
    """With the token of that step."""
    made_up: tuple[str, str, str] | None = None


class NotThereError(Exception):
    """A step names an answer that there is none of, as walks are made shorter."""


@dataclass(frozen=True)
class Step:
    verb: str
    facts: tuple[Any, ...] = ()
    who: tuple[Who, ...] = ()
    stamp_of: int = -1
    floor_of: int = -1

    def __str__(self) -> str:
        parts = [_words(fact) for fact in (*self.facts, *self.who)]
        named = (("stamp", self.stamp_of), ("floor", self.floor_of))
        parts += [f"{name} of step {number}" for name, number in named if number >= 0]
        return f"{self.verb} {' '.join(parts)}"


class Difference(NamedTuple):
    steps: list[Step]
    at: int
    answers: list[tuple[str, Any]]

    def __str__(self) -> str:
        walked = enumerate(self.steps[: self.at + 1])
        lines = ["", *[f"{number:3}. {_short(str(step))}" for number, step in walked if step.verb != "nothing"]]
        first_name, first = self.answers[0]
        lines.append(f"     {first_name} answers {_short(str(first))}")
        others = [(name, answer) for name, answer in self.answers[1:] if answer != first]
        lines += [f"     {name}: {_short(_told_apart(first, answer))}" for name, answer in others]
        return "\n".join(lines)


def find_difference(sides: Sequence[Side], seed: int, steps: int, *, back: bool) -> Difference | None:
    """Walk; the first difference, by a walk that is as short as it could be made in a while."""
    found = play(sides, make_walk(seed, steps, back=back))
    return found and shortened(sides, found, within=60.0)


def shortened(sides: Sequence[Side], found: Difference, *, within: float) -> Difference:
    """Leave out steps, many at first, as long as the stores still differ."""
    give_up = time.monotonic() + within
    size = max(1, found.at // 2)
    while size and time.monotonic() < give_up:
        start, steps = 0, found.steps[: found.at + 1]
        while start < len(steps) and time.monotonic() < give_up:
            # Steps keep their numbers, which others name them by.
            fewer = [Step("nothing") if start <= n < start + size else step for n, step in enumerate(steps)]
            less = play(sides, fewer) if fewer != steps else None
            if less is not None:
                found, steps = less, less.steps[: less.at + 1]
            start += size
        size //= 2
    return found


_walks = count()


def play(sides: Sequence[Side], steps: list[Step]) -> Difference | None:
    """Ask every store the same, each in a namespace of its own; the first step that they answer differently."""
    clock, namespace = Clock(), f"walk-{time.monotonic_ns()}-{next(_walks)}"
    stores = [side.open(namespace, clock) for side in sides]
    try:
        for side in sides:
            side.set_time(clock.now)
        return _play(sides, stores, clock, steps)
    finally:
        for side, store in zip(sides, stores, strict=True):
            if not isinstance(side, Redis):  # they share their client
                store.close()


def _play(sides: Sequence[Side], stores: list[Store], clock: Clock, steps: list[Step]) -> Difference | None:
    told: dict[int, Any] = {}
    for number, step in enumerate(steps):
        if step.verb == "tick":
            clock.now += step.facts[0]
            for side in sides:
                side.set_time(clock.now)
            continue
        if step.verb == "purge":
            over = _over(stores[0], clock.now)
            for side, store in zip(sides, stores, strict=True):
                side.purge(store, over)
            continue
        try:
            verb = _verb(step, told)
        except NotThereError:
            continue
        answers = [(side.name, _asked(verb, store)) for side, store in zip(sides, stores, strict=True)]
        if any(answer != answers[0][1] or type(answer) is not type(answers[0][1]) for _, answer in answers):
            return Difference(steps, number, answers)
        told[number] = answers[0][1]
    return None


def _asked(verb: Callable[[Store], Any], store: Store) -> Any:
    try:
        return verb(store)
    except Exception as error:  # that one store raises and another does not is a difference, whatever it is
        return f"{type(error).__name__}: {error}"


def _over(store: Any, now: int) -> Over:
    over = [name for name, kept in store._kept.items.items() if not store._is_there(kept, now)]
    return Over([name for name in over if isinstance(name, str)], [name for name in over if not isinstance(name, str)])


def _verb(step: Step, told: dict[int, Any]) -> Callable[[Store], Any]:
    who = [_claimant(each, told) for each in step.who]
    facts: Any = step.facts
    if step.verb == "nothing":
        raise NotThereError
    if step.verb == "claim":
        claim: Claim = facts[0]
        if step.stamp_of >= 0:
            claim = replace(claim, stamp=_answer(told, step.stamp_of, Held).stamp)
        if step.floor_of >= 0:
            claim = replace(claim, floor=_answer(told, step.floor_of, Lease, Held).token + min(claim.floor, 5))
        return lambda store: store.claim(claim)
    if step.verb == "renew":
        leases: Any = [(lease, seconds) for lease, seconds in zip(who, facts[0], strict=True)]
        return lambda store: store.renew(leases)
    if step.verb == "requeue":
        return lambda store: store.requeue(who[0], facts[0], copy_for=facts[1], keep_starts=facts[2], copy=facts[3])
    if step.verb == "mark":
        return lambda store: store.mark(list(zip(who, facts[0], strict=True)), copy_for=facts[1])
    if step.verb == "complete":
        return lambda store: store.complete(who[0], facts[0])
    if step.verb == "release":
        return lambda store: store.release(who[0], facts[0], anyway=facts[1])
    if step.verb == "forget":
        token = _answer(told, step.floor_of, Lease, Held).token if step.floor_of >= 0 else 0
        return lambda store: store.forget(facts[0], token)
    if step.verb == "get":
        return lambda store: store.get(facts[0])
    assert step.verb == "scan"
    return lambda store: sorted(store.scan(facts[0]), key=lambda entry: entry.key)


def _claimant(who: Who, told: dict[int, Any]) -> Claimant:
    if who.made_up is not None:
        return Claimant(*who.made_up)
    found: Any = _answer(told, who.step, Lease, Held)
    if who.by_attempt:
        return Claimant(found.key, found.owner, found.attempt)
    if who.token_of >= 0:
        return replace(found, token=_answer(told, who.token_of, Lease, Held).token)
    return found  # type: ignore[no-any-return]


def _answer(told: dict[int, Any], step: int, *kinds: type) -> Any:
    found = told.get(step)
    if not isinstance(found, kinds):
        raise NotThereError
    return found


# -- chance ------------------------------------------------------------------------------------------------------------


def make_walk(seed: int, steps: int, *, back: bool) -> list[Step]:
    """*back*: the clock goes both ways."""
    return _Chance(seed, back).walk(steps)


class _Chance:
    def __init__(self, seed: int, back: bool) -> None:
        self._random = random.Random(seed)
        self._jumps = (*FORWARD, *BACK) if back else FORWARD
        self._keys = self._random.sample(KEYS, 2)  # few, so that verbs meet
        self._owners = self._random.sample(OWNERS, 3)
        self._steps: list[Step] = []

    def walk(self, steps: int) -> list[Step]:
        verbs = {
            self._tick: 18,
            self._purge: 2,
            self._claim: 34,
            self._repeat: 6,
            self._renew: 8,
            self._requeue: 12,
            self._mark: 6,
            self._complete: 12,
            self._release: 18,
            self._forget: 3,
            self._get: 4,
            self._scan: 1,
        }
        while len(self._steps) < steps:
            if self._is(0.06):
                self._one_of(self._joins, self._ends_elsewhere, self._is_skipped)()
            else:
                self._steps.append(self._random.choices(list(verbs), list(verbs.values()))[0]())
        return self._steps

    # What hardly ever comes about by chance; the walk goes on from there.

    def _joins(self) -> None:
        key, twin, joiner = self._beginning()
        self._then("complete", self._ending_as("succeeded", "failed"), of=self._then("claim", self._plain(key, twin)))
        if self._is(0.7):
            self._then("claim", self._plain(key, joiner, state=self._one_of("queued", "running")))
        self._sometimes(self._tick)
        request = self._plain(key, joiner, join=twin)
        self._then("claim", request)
        self._sometimes(self._claim)
        self._then("claim", self._one_of(request, replace(request, attempt=self._attempt())))

    def _ends_elsewhere(self) -> None:
        key, owner, _ = self._beginning()
        lease = self._then("claim", self._plain(key, owner))
        elsewhere = (Who(-1, made_up=(key, owner, "elsewhere")),)
        first = self._ending_as("revoked", "expired", "released")
        self._steps.append(Step("release", (first, True), elsewhere))
        self._sometimes(self._tick)
        for _ in range(2):
            if self._is(0.3):
                self._then("requeue", 30.0, 1.0, False, "", of=lease)
            else:
                self._then("release", self._ending_as("released", "released", "failed"), self._is(0.1), of=lease)
            if self._is(0.3):
                self._steps.append(Step("release", (self._ending_as("revoked"), True), elsewhere))
        self._sometimes(self._tick)
        self._then("claim", self._plain(key, owner))

    def _is_skipped(self) -> None:
        key, holder, skipped = self._beginning()
        lease = self._then("claim", self._plain(key, holder))
        request = self._plain(key, skipped, skip=True)
        self._then("claim", request)
        self._sometimes(self._tick)
        self._then("complete", self._ending_as("succeeded"), of=lease)
        self._then("claim", self._one_of(request, replace(request, attempt=self._attempt())))

    def _beginning(self) -> tuple[str, str, str]:
        """A key that is free, and two owners."""
        key = self._one_of(*self._keys)
        self._then("forget", key)
        one, other = self._random.sample(self._owners, 2)
        return key, one, other

    def _plain(self, key: str, owner: str, **options: Any) -> Claim:
        return Claim(key, owner, self._attempt(), lease=self._duration(), keep_for=self._duration(), **options)

    def _ending_as(self, *hows: How) -> Ending:
        return replace(self._ending(), how=self._one_of(*hows), linger=0.0)

    def _then(self, verb: str, *facts: Any, of: int = -1) -> int:
        self._steps.append(Step(verb, facts, (Who(of),) if of >= 0 else ()))
        return len(self._steps) - 1

    def _sometimes(self, step: Callable[[], Step]) -> None:
        if self._is(0.5):
            self._steps.append(step())

    # One step, of whatever kind.

    def _one_of(self, *things: Any) -> Any:
        return self._random.choice(things)

    def _is(self, chance: float) -> bool:
        return self._random.random() < chance

    def _period(self) -> float:
        """A duplicate marks what it found for as long as that was to last, and that may be over."""
        return -1.0 if self._is(0.05) else self._duration()

    def _duration(self) -> float:
        return float(self._one_of(*DURATIONS) if self._is(0.5) else 7200.0)

    def _recent(self, *verbs: str) -> int:
        """The number of one of the last claims; that of none if there is none."""
        known = [number for number, step in enumerate(self._steps) if step.verb in verbs]
        return int(self._random.choice(known[-10:])) if known else -1

    def _attempt(self) -> str:
        return f"a{self._random.randint(1, 6)}"

    def _who(self) -> Who:
        if self._is(0.15):
            attempt = self._one_of("", self._attempt())
            return Who(-1, made_up=(self._one_of(*self._keys), self._one_of(*self._owners), attempt))
        step = self._recent("claim")
        if self._is(0.2):
            return Who(step, by_attempt=True)
        return Who(step, token_of=self._recent("claim")) if self._is(0.1) else Who(step)

    def _ending(self) -> Ending:
        return Ending(
            how=self._one_of("succeeded", "failed", "released", "released", *get_args(How)),
            keep_for=self._duration(),
            outcome=self._one_of(*OUTCOMES),
            linger=self._one_of(0.0, 0.0, 0.0, *DURATIONS[:6]),
            answered=self._is(0.3),
            repeat_for=self._one_of(0.0, 0.0, *DURATIONS),
        )

    def _tick(self) -> Step:
        return Step("tick", (self._one_of(*self._jumps),))

    def _purge(self) -> Step:
        return Step("purge")

    def _claim(self) -> Step:
        claim = Claim(
            self._one_of(*self._keys),
            self._one_of(*self._owners),
            self._attempt(),
            state=self._one_of("queued", "running", "running"),
            lease=self._duration(),
            keep_for=self._duration(),
            floor=self._one_of(0, 0, 0, 0, 0, 5, BEGINNING + 10_000_000, 2**52),
            reuse=self._one_of("nothing", "success", "anything"),
            skip=self._is(0.2),
            join=self._one_of("", "", "", *self._owners),
            replace_queued=self._is(0.15),
            payload=self._one_of("", "p1", "p2"),
            label=self._one_of("", "order=7", "höhe=…"),
            where=self._one_of("", "here:1", "there:2"),
            copy=self._one_of(*COPIES),
            copy_for=self._one_of(0.0, *DURATIONS),
        )
        stamp_of = self._recent("claim") if self._is(0.3) else -1
        return Step("claim", (claim,), stamp_of=stamp_of, floor_of=self._recent("claim") if self._is(0.1) else -1)

    def _repeat(self) -> Step:
        step = self._recent("claim")
        return self._steps[step] if step >= 0 else self._claim()

    def _renew(self) -> Step:
        who = tuple(Who(self._recent("claim")) for _ in range(self._random.randint(0, 3)))
        return Step("renew", ([self._period() for _ in who],), who)

    def _requeue(self) -> Step:
        facts = (self._period(), self._one_of(*DURATIONS), self._is(0.5), self._one_of(*COPIES))
        return Step("requeue", facts, (self._who(),))

    def _mark(self) -> Step:
        who = tuple(self._who() for _ in range(self._random.randint(0, 4)))
        return Step("mark", ([self._period() for _ in who], self._one_of(*DURATIONS)), who)

    def _complete(self) -> Step:
        return Step("complete", (self._ending(),), (self._who(),))

    def _release(self) -> Step:
        return Step("release", (self._ending(), self._is(0.35)), (self._who(),))

    def _forget(self) -> Step:
        return Step("forget", (self._one_of(*self._keys),), floor_of=self._recent("claim") if self._is(0.3) else -1)

    def _get(self) -> Step:
        return Step("get", (self._one_of(*self._keys),))

    def _scan(self) -> Step:
        return Step("scan", (self._one_of("", *self._keys),))


# -- words -------------------------------------------------------------------------------------------------------------


def _told_apart(one: Any, other: Any) -> str:
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return "; ".join(_told_apart(*pair) for pair in zip(one, other, strict=True) if pair[0] != pair[1])
    if type(one) is not type(other) or not is_dataclass(one):
        return str(other)
    pairs = [(field.name, getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return ", ".join(f"{name} {theirs!r}, not {ours!r}" for name, ours, theirs in pairs if ours != theirs)


def _words(fact: Any) -> str:
    """A dataclass with what is not as usual in it."""
    if not is_dataclass(fact):
        return str(fact)
    told = [(field.name, getattr(fact, field.name), field.default) for field in fields(fact)]
    return f"{type(fact).__name__}({', '.join(f'{name}={value!r}' for name, value, usual in told if value != usual)})"


def _short(text: str) -> str:
    return re.sub(r"(\w)\1{30,}", r"\1…", text)
