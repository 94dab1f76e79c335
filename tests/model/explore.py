"""Breadth first through all worlds: the first violation found is one with a shortest trace.

Safety is judged on every step. Liveness is judged when all worlds are known: from each of them some continuation
without further faults must end every accepted job and leave the key free, which is a search backwards from the worlds
where that is so.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from taskguard.protocol.rules import Rules
from tests.model.calls import Calls
from tests.model.deliveries import Deliveries
from tests.model.nature import Nature
from tests.model.stage import COPIES_STAY, JOB_LOST, KEY_BLOCKED, Stage, Step
from tests.model.world import (
    ACCEPTED,
    ACK,
    ANSWERED,
    BODY,
    FAILED,
    FORGOTTEN,
    GONE,
    IDLE,
    JOINED_TO,
    MISSED,
    OK,
    PUBLISHING,
    REFUSED,
    REVOKED,
    REVOKING,
    Behaviour,
    Config,
    World,
)

Goal = Callable[[World], bool]


@dataclass(frozen=True)
class Violation:
    kind: str
    trace: tuple[str, ...]
    world: World

    def __str__(self) -> str:
        lines = [f"{number:3}. {label}" for number, label in enumerate(self.trace, 1)]
        return "\n".join([self.kind, *lines, f"     the store then: {self.world.stored!r}, ends: {self.world.ends}"])


@dataclass
class Result:
    states: int = 0
    seconds: float = 0.0
    complete: bool = True
    """False if there were more worlds than asked for."""
    violations: list[Violation] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return [violation.kind for violation in self.violations]


class Model:
    """*told_apart*: workers keep their numbers through a trace, at the price of twice as many worlds."""

    def __init__(
        self,
        config: Config,
        rules: Rules | None = None,
        behaviour: Behaviour | None = None,
        *,
        told_apart: bool = False,
    ) -> None:
        self.config = config
        self.stage = Stage(config, rules or Rules(), behaviour or Behaviour(), told_apart=told_apart)
        workers = Deliveries(self.stage)
        self._parts = (Calls(self.stage), Nature(self.stage, workers), workers)

    def steps(self, world: World) -> Iterator[Step]:
        for part in self._parts:
            yield from part.steps(world)

    def goals(self) -> Iterator[tuple[str, Goal]]:
        if self.config.endless:
            yield COPIES_STAY, self._has_few_copies
        else:
            yield JOB_LOST, self._has_ended
            yield KEY_BLOCKED, self._is_quiet

    def _has_ended(self, world: World) -> bool:
        return all(self._is_over(world, job) for job in range(self.config.jobs))

    def _is_over(self, world: World, job: int) -> bool:
        phase = world.publishers[job].phase
        if phase in PUBLISHING:
            return False
        if phase in (GONE, REFUSED):
            return not self.config.called_again
        assert phase in (ACCEPTED, ANSWERED)
        return world.ends[job] == MISSED or _comes_to_an_end(world.ends, job)

    def _is_quiet(self, world: World) -> bool:
        idle = all(worker.phase == IDLE for worker in world.workers)
        return idle and not any(world.broker) and not world.stored.live and self._has_ended(world)

    def _has_few_copies(self, world: World) -> bool:
        return all(
            len(messages) + sum(worker.job == job and worker.phase not in (BODY, ACK) for worker in world.workers) <= 1
            for job, messages in enumerate(world.broker)
        )


def _comes_to_an_end(ends: tuple[str, ...], job: int) -> bool:
    """Follows the twins that jobs were answered with, skipped for or joined to, until one really ended."""
    seen = set()
    needs_outcome = False
    while job not in seen:
        seen.add(job)
        end = ends[job]
        if end in (OK, FAILED, FORGOTTEN):
            return True
        if end in (REVOKED, REVOKING):
            return not needs_outcome
        if end in ("", MISSED):
            return False
        needs_outcome = needs_outcome or end[0] == JOINED_TO
        job = int(end[1:])
    return False


def explore(model: Model, *, most: int = 5_000_000, first_only: bool = True) -> Result:
    """All worlds that can be reached, or all up to the first violation."""
    began = time.process_time()
    search = _Search(model, most, first_only)
    # Nothing here is cyclic, and looking for cycles among millions of tuples costs as much as the search.
    collecting = gc.isenabled()
    gc.disable()
    try:
        search.forwards()
        if not search.result.violations and search.result.complete:
            search.backwards()
    finally:
        if collecting:
            gc.enable()
    search.result.states = len(search.worlds)
    search.result.seconds = time.process_time() - began
    return search.result


class _Search:
    def __init__(self, model: Model, most: int, first_only: bool) -> None:
        self.model = model
        self.result = Result()
        first = model.stage.first()
        self.worlds = [first]
        self._most = most
        self._first_only = first_only
        self._places = {first: 0}
        self._parents = array("l", [-1])
        self._sources = array("l")
        self._targets = array("l")

    def forwards(self) -> None:
        worlds, places, kinds = self.worlds, self._places, set[str]()
        place = 0
        while place < len(worlds):
            for step in self.model.steps(worlds[place]):
                target = places.get(step.world)
                if target is None:
                    if len(worlds) >= self._most:
                        self.result.complete = False
                        continue
                    target = places[step.world] = len(worlds)
                    worlds.append(step.world)
                    self._parents.append(place)
                if not step.fault:
                    self._sources.append(place)
                    self._targets.append(target)
                if step.broken and step.broken not in kinds:
                    kinds.add(step.broken)
                    trace = (*self._trace(place), step.label)
                    self.result.violations.append(Violation(step.broken, trace, step.world))
                    if self._first_only:
                        return
            place += 1

    def backwards(self) -> None:
        before = self._predecessors()
        for kind, goal in self.model.goals():
            stuck = self._first_stuck(before, goal)
            if stuck is not None:
                self.result.violations.append(Violation(kind, tuple(self._trace(stuck)), self.worlds[stuck]))
                return

    def _first_stuck(self, before: tuple[array[int], array[int]], goal: Goal) -> int | None:
        starts, sources = before
        good = bytearray(len(self.worlds))
        todo = [place for place, world in enumerate(self.worlds) if goal(world)]
        for place in todo:
            good[place] = 1
        while todo:
            target = todo.pop()
            for source in sources[starts[target] : starts[target + 1]]:
                if not good[source]:
                    good[source] = 1
                    todo.append(source)
        stuck = good.find(0)
        return None if stuck < 0 else stuck

    def _predecessors(self) -> tuple[array[int], array[int]]:
        """The sources of each world's incoming steps in one array, and where each world's part of it starts."""
        starts = array("l", bytes(array("l").itemsize * (len(self.worlds) + 1)))
        for target in self._targets:
            starts[target + 1] += 1
        for place in range(len(self.worlds)):
            starts[place + 1] += starts[place]
        free = array("l", starts)
        sources = array("l", bytes(array("l").itemsize * len(self._sources)))
        for source, target in zip(self._sources, self._targets, strict=True):
            sources[free[target]] = source
            free[target] += 1
        return starts, sources

    def _trace(self, place: int) -> list[str]:
        """Steps are not kept: each is found again from the world it left."""
        path = [place]
        while self._parents[path[-1]] >= 0:
            path.append(self._parents[path[-1]])
        return [self._label(source, target) for source, target in pairwise(reversed(path))]

    def _label(self, source: int, target: int) -> str:
        world = self.worlds[target]
        return next(step.label for step in self.model.steps(self.worlds[source]) if step.world == world)
