"""Random walks: the same verbs in the same order must get the same answers from a store and from the rules.

A store with its own implementation (a script, a stored procedure) is a translation of `taskguard.protocol.rules`; a
walk finds where the two differ. Every duration either expires by the next step or does not expire within the walk, so
that the speed of the machine does not matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Held, Lease, Store
from taskguard.stores.memory import MemoryStore

OVER = 0.001
STEP = 0.004
NEVER = 100_000.0


def walk_beside_the_rules(store: Store, elapse: Callable[[float], None], *, seed: int, steps: int) -> None:
    """Walk; raise AssertionError at the first answer that differs, with all steps so far in the message."""
    walk = _Walk(store, elapse, seed)
    for _ in range(steps):
        walk.step()


class _Walk:
    def __init__(self, store: Store, elapse: Callable[[float], None], seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.store, self.model = store, MemoryStore(clock=lambda: self.now)
        self.elapse = elapse
        self.prefix = f"walk {seed} "
        self.claimants: list[tuple[Claimant, Claimant]] = []  # the store's answer, and the rules' answer
        self.requests: list[Claim] = []
        self.continuing: list[tuple[Claim, Held, Held]] = []  # copies that continue
        self.tokens: dict[int, int] = {}
        self.path: list[str] = []

    def step(self) -> None:
        verb = self.random.choices(
            (
                self.claim,
                self.repeat,
                self.name_copy,
                self.renew,
                self.requeue,
                self.mark,
                self.complete,
                self.release,
                self.forget,
                self.look,
            ),
            (30, 5, 6, 8, 8, 6, 12, 14, 2, 10),
        )[0]
        verb()
        self.now += round(STEP * 1e6)
        self.elapse(STEP)

    def key(self) -> str:
        return self.prefix + self.random.choice(("a", "a", "a", "b}"))

    def owner(self) -> str:
        return self.random.choice(("alice", "bob", "carol:2"))

    def duration(self, never: int = 3) -> float:
        return self.random.choices((OVER, NEVER), (1, never))[0]

    def ending(self) -> Ending:
        return Ending(
            how=self.random.choice(("succeeded", "succeeded", "failed", "revoked", "released")),
            keep_for=self.duration(6),
            outcome=self.random.choice((None, b"", b"outcome")),
            linger=self.random.choice((0.0, 0.0, OVER, NEVER)),
            answered=self.random.random() < 0.2,
            repeat_for=self.random.choice((0.0, OVER, NEVER)),
        )

    def claim(self) -> None:
        request = Claim(
            self.key(),
            self.owner(),
            f"attempt {len(self.path)}",
            state=self.random.choice(("queued", "running", "running")),
            lease=self.duration(2),
            keep_for=self.duration(6),
            reuse=self.random.choice(("nothing", "success", "anything")),
            skip=self.random.random() < 0.15,
            join=self.random.choice(("", "", "alice", "bob")),
            replace_queued=self.random.random() < 0.15,
            payload=self.random.choice(("", "digest")),
            label=self.random.choice(("", "order=7", "höhe=…")),
            where=self.random.choice(("", "here:1", "there:2")),
            copy=self.random.choice(("", "copy 1", "copy 2")),
            copy_for=self.random.choice((0.0, OVER, NEVER)),
        )
        self.requests.append(request)
        self.ask(request)

    def repeat(self) -> None:
        if self.requests:
            self.ask(self.random.choice(self.requests[-4:]))

    def name_copy(self) -> None:
        """A caller whose copy may continue confirms that it has published the copy."""
        for request, got, expected in reversed(self.continuing[-2:]):
            request = replace(request, copy_for=self.random.choice((0.0, OVER, NEVER)))
            self.ask(replace(request, stamp=got.stamp), replace(request, stamp=expected.stamp))

    def ask(self, request: Claim, to_model: Claim | None = None) -> None:
        got, expected = self.store.claim(request), self.model.claim(to_model or request)
        self.compare(f"claim {request}", got, expected)
        if isinstance(got, Held) and isinstance(expected, Held) and got.stamp:
            self.continuing.append((request, got, expected))
        if not isinstance(got, Completed) and not isinstance(expected, Completed):
            self.claimants.append((got, expected))

    def claimant(self) -> tuple[Claimant, Claimant]:
        got, expected = self.random.choice(self.claimants[-6:])
        if self.random.random() < 0.25:  # what a parent knows of its child
            return tuple(Claimant(c.key, c.owner, c.attempt) for c in (got, expected))  # type: ignore[return-value]
        return got, expected

    def renew(self) -> None:
        leases = [pair for pair in self.claimants[-8:] if isinstance(pair[0], Lease)]
        seconds = [self.duration() for _ in leases]
        got = self.store.renew([(pair[0], s) for pair, s in zip(leases, seconds, strict=True)])  # type: ignore[misc]
        expected = self.model.renew([(pair[1], s) for pair, s in zip(leases, seconds, strict=True)])  # type: ignore[misc]
        self.compare(f"renew {leases} {seconds}", got, expected)

    def requeue(self) -> None:
        if not self.claimants:
            return
        mine, theirs = self.claimant()
        seconds = self.duration()
        options: dict[str, Any] = {
            "copy_for": self.random.choice((OVER, NEVER)),
            "keep_starts": self.random.random() < 0.5,
            "copy": self.random.choice(("", "copy 1", "copy 2")),
        }
        got = self.store.requeue(mine, seconds, **options)
        self.compare(f"requeue {mine} {seconds} {options}", got, self.model.requeue(theirs, seconds, **options))

    def mark(self) -> None:
        pairs = [self.claimant() for _ in self.claimants[-4:]]
        seconds, copy_for = [self.duration() for _ in pairs], self.random.choice((OVER, NEVER))
        got = self.store.mark([(mine, s) for (mine, _), s in zip(pairs, seconds, strict=True)], copy_for=copy_for)
        marks = [(theirs, s) for (_, theirs), s in zip(pairs, seconds, strict=True)]
        self.compare(f"mark {pairs} {seconds} {copy_for}", got, self.model.mark(marks, copy_for=copy_for))

    def complete(self) -> None:
        if self.claimants:
            (mine, theirs), ending = self.claimant(), self.ending()
            got = self.store.complete(mine, ending)
            self.compare(f"complete {mine} {ending}", got, self.model.complete(theirs, ending))

    def release(self) -> None:
        if self.claimants:
            (mine, theirs), ending = self.claimant(), self.ending()
            anyway = self.random.random() < 0.3
            got = self.store.release(mine, ending, anyway=anyway)
            expected = self.model.release(theirs, ending, anyway=anyway)
            self.compare(f"release {mine} {ending} anyway={anyway}", got, expected)

    def forget(self) -> None:
        key = self.key()
        self.compare(f"forget {key}", self.store.forget(key), self.model.forget(key))

    def look(self) -> None:
        key = self.key()
        self.compare(f"get {key}", self.store.get(key), self.model.get(key))
        listed = sorted(entry.key for entry in self.store.scan(self.prefix))
        assert listed == sorted(entry.key for entry in self.model.scan(self.prefix)), self.story(f"scan: {listed}")

    def compare(self, what: str, got: Any, expected: Any) -> None:
        self.path.append(f"{what}\n    -> {got}")
        assert self.plain(got, 0) == self.plain(expected, 1), self.story(f"the rules say {expected}")

    def plain(self, answer: Any, side: int) -> Any:
        """The answer without times and tokens, which depend on the clock; tokens are compared by their order."""
        if not isinstance(answer, (Lease, Held, Completed, Entry)):
            return answer
        token = answer.token
        if side == 0:
            self.pending = token
        else:
            known = self.tokens.setdefault(token, self.pending)
            in_order = all((token < t) == (known < k) for t, k in self.tokens.items())
            assert known == self.pending and in_order, self.story(f"token {self.pending}: {self.tokens}")
        changes: dict[str, Any] = {"token": 0}
        if isinstance(answer, (Held, Entry)):
            changes |= {"since": 0.0, "remaining": float(answer.remaining > 0)}
            if isinstance(answer, Held):
                changes["stamp"] = "stamped" if answer.stamp else ""
        elif isinstance(answer, Completed):
            changes["at"] = 0.0
        return replace(answer, **changes)

    def story(self, end: str) -> str:
        return "\n".join([*self.path, end])
