"""Every order of steps of a few schedulers and a worker, with faults anywhere: the real code on the real rules.

Each actor runs in a greenlet that stops before every step that others can see: a verb of the store, a publication, the
start and the end of a body. A run is a list of choices: who goes on, or which fault happens. All lists are tried, the
number of times that an actor is interrupted in the middle of a look being bounded; faults come at every step. When the
choices are over everybody goes on in turn without further faults, and then each slot must have run once, or have been
left out for a reason that was told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from greenlet import greenlet

from taskguard.protocol.store import Lease
from taskguard.schedule.boundaries import MICROS, between
from taskguard.schedule.entry import ScheduledEntry, Slot
from taskguard.schedule.keeper import Timekeeper
from tests.schedule.bench import START, Bench

VERBS = ("claim", "get", "mark", "complete", "release")


class _Stopping:
    """The store as an actor sees it: before each verb it gives way."""

    def __init__(self, store: Any, give_way: Callable[[], None]) -> None:
        self._store = store
        self._give_way = give_way
        self.guarantees = store.guarantees

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in VERBS:
            return verb

        def step(*args: Any, **options: Any) -> Any:
            self._give_way()
            return verb(*args, **options)

        return step


@dataclass
class Scenario:
    entry: ScheduledEntry
    schedulers: int = 2
    slots: int = 1
    """Boundaries that pass before the first choice."""
    faults: tuple[str, ...] = ("crash", "time", "lose")
    most_faults: int = 1
    interruptions: int = 2
    looks: int = 2
    lease: float = 30.0
    """Seconds that the run of a worker outlives it."""
    looks_after: int = 12
    """Every two seconds, when the choices are over."""
    keeper: Callable[[Bench], Timekeeper] = lambda bench: bench.keeper(republish_after=5)


@dataclass
class Outcome:
    choices: list[int]
    options: list[int]
    trace: list[str]
    problem: str = ""


@dataclass
class _Actor:
    name: str
    green: Any
    dead: bool = False

    @property
    def is_over(self) -> bool:
        return self.dead or self.green.dead


@dataclass
class Option:
    name: str
    step: Callable[[], Any]
    actor: _Actor | None = None
    """Who has the floor afterwards."""
    interruption: int = 0
    fault: int = 0


@dataclass
class _World:
    scenario: Scenario
    bench: Bench = field(default_factory=Bench)
    actors: list[_Actor] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    in_body: int | None = None
    """The slot whose body is at work."""

    def __post_init__(self) -> None:
        self.hub = greenlet.getcurrent()
        self.bench.lease = self.scenario.lease
        self.bench.kept = "death" in self.scenario.faults
        self.bench.store = _Stopping(self.bench.store, self._give_way)  # type: ignore[assignment]
        keepers = [self.keeper() for _ in range(self.scenario.schedulers)]
        for keeper in keepers:
            keeper.look(self.scenario.entry, self.bench.publish)  # they know it from the start
        self.bench.clock.advance(self.scenario.slots * 10 + 0.5)
        for number, keeper in enumerate(keepers):
            self._add(f"beat{number}", partial(self._schedule, keeper))
        self._add("worker", self._work)

    def keeper(self) -> Timekeeper:
        return self.scenario.keeper(self.bench)

    def _add(self, name: str, body: Callable[[], None]) -> None:
        self.actors.append(_Actor(name, greenlet(body, self.hub)))

    def _give_way(self) -> None:
        if greenlet.getcurrent() is not self.hub:
            self.hub.switch()

    def _schedule(self, keeper: Timekeeper) -> None:
        for _ in range(self.scenario.looks):
            keeper.look(self.scenario.entry, self._publish)
            self.hub.switch()

    def _publish(self, slot: Slot) -> None:
        self._give_way()
        self.bench.publish(slot)

    def _work(self) -> None:
        for _ in range(3):
            self.hub.switch()
            if self.bench.queue:
                answer = self.bench.start()
                if isinstance(answer, Lease):
                    self.in_body = self.bench.ran[-1]
                    self.hub.switch()
                    self.bench.finish(answer)
                    self.in_body = None

    # -- choices ---------------------------------------------------------------------------------------------------

    def options(self, current: _Actor | None, interruptions: int, faults: int) -> Iterator[Option]:
        """What can happen next."""
        alive = [actor for actor in self.actors if not actor.is_over]
        if current is not None and current not in alive:
            current = None
        if current is not None:
            yield Option(f"{current.name} goes on", current.green.switch, current)
        for actor in alive:
            cost = 0 if current is None else 1
            if actor is not current and cost <= interruptions:
                yield Option(f"{actor.name} goes on", actor.green.switch, actor, interruption=cost)
        if faults:
            if "crash" in self.scenario.faults and current is not None and current.name != "worker":
                yield Option(f"{current.name} dies", partial(self._kill, current), fault=1)
            if "time" in self.scenario.faults:
                yield Option("two seconds pass", partial(self.bench.clock.advance, 2.1), current, fault=1)
            if "lose" in self.scenario.faults and self.bench.queue:
                yield Option("a message is lost", partial(self.bench.queue.pop, 0), current, fault=1)
            if "death" in self.scenario.faults and self.in_body is not None:
                yield Option("the worker dies, and so does the message it had", self._kill_worker, fault=1)
                yield Option(
                    "so it does, and is found out", partial(self._kill_worker, self.scenario.lease + 6), fault=1
                )

    def _kill(self, actor: _Actor) -> None:
        actor.dead = True

    def _kill_worker(self, ago: float = 0.0) -> None:
        """Its run does not count: the slot is to run again."""
        self.bench.clock.advance(ago)
        self._kill(self.actors[-1])
        assert self.in_body is not None
        self.bench.ran.remove(self.in_body)
        self.in_body = None

    # -- afterwards ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for _ in range(3):
            for actor in self.actors:
                while not actor.is_over:
                    actor.green.switch()
        keeper = self.keeper()
        for _ in range(self.scenario.looks_after):
            keeper.look(self.scenario.entry, self.bench.publish)
            self.bench.work()
            self.bench.clock.advance(2.1)

    def problem(self, until: int) -> str:
        due = list(between(self.scenario.entry.schedule, round(START.timestamp()) * MICROS, until))
        told = {event.owner for event in self.bench.events if event.kind == "slot_skipped"}
        for at in due:
            runs = self.bench.ran.count(at)
            if runs > 1:
                return f"slot {at} ran {runs} times"
            # One that ran may have been told as skipped by a scheduler that looked just before the run ended.
            if not runs and self.scenario.entry.slot(at).job_id not in told:
                return f"slot {at} was lost"
        return ""


def run(scenario: Scenario, choices: list[int]) -> Outcome:
    world = _World(scenario)
    until = world.bench.clock()
    interruptions, faults = scenario.interruptions, scenario.most_faults
    current: _Actor | None = None
    taken: list[int] = []
    counts: list[int] = []
    while True:
        options = list(world.options(current, interruptions, faults))
        if not any(not actor.is_over for actor in world.actors):
            break
        index = choices[len(taken)] if len(taken) < len(choices) else 0
        index = index if index < len(options) else 0
        option = options[index]
        taken.append(index)
        counts.append(len(options))
        current = option.actor
        interruptions -= option.interruption
        faults -= option.fault
        world.trace.append(option.name)
        option.step()
    world.settle()
    return Outcome(taken, counts, world.trace, world.problem(until))


def explore(scenario: Scenario, most: int = 100_000) -> tuple[int, Outcome | None]:
    """How many runs there are, and the first in which something goes wrong."""
    choices: list[int] = []
    for number in range(1, most):
        outcome = run(scenario, choices)
        if outcome.problem:
            return number, outcome
        choices = outcome.choices
        while choices and choices[-1] + 1 >= outcome.options[len(choices) - 1]:
            choices.pop()
        if not choices:
            return number, None
        choices[-1] += 1
    raise AssertionError(f"more than {most} runs")


def sample(scenario: Scenario, seed: int, number: int) -> Outcome | None:
    """The first of so many runs by chance in which something goes wrong: where all of them would be too many."""
    chance = random.Random(seed)
    for _ in range(number):
        # Choices beyond what there is to choose are none: see `run`.
        outcome = run(scenario, [chance.choice((0, 0, 0, 1, 2, 3, 4)) for _ in range(60)])
        if outcome.problem:
            return outcome
    return None
