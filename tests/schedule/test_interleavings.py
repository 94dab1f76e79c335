"""No order of steps and no fault loses a slot or runs it twice; and each rule of the protocol is needed for that."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard.schedule.keeper import Timekeeper
from taskguard.schedule.lost import Lookout
from taskguard.schedule.publishing import Publishing
from taskguard.schedule.watermark import Watermarks
from tests.schedule.bench import Bench, every
from tests.schedule.interleavings import Outcome, Scenario, explore, sample

SKIP = every(10, catch_up="all")
ALLOW = every(10, catch_up="all", overlap="allow_all")
BUFFER = every(10, catch_up="all", overlap="buffer_all")


DEATHS = {"faults": ("crash", "time", "lose", "death"), "lease": 9, "looks": 3, "looks_after": 24}
"""A run that lasts longer than its lease is another matter: nine seconds are more than any fault here takes."""


def assert_clean(outcome: Outcome | None) -> None:
    assert outcome is None, "\n".join([outcome.problem, *outcome.trace])


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(Scenario(SKIP, interruptions=1, most_faults=0), id="one-interruption"),
        pytest.param(Scenario(SKIP, interruptions=0, most_faults=1), id="one-fault"),
        pytest.param(Scenario(ALLOW, slots=2, interruptions=0, most_faults=1), id="two-slots-one-fault"),
        pytest.param(Scenario(BUFFER, slots=2, interruptions=0, most_faults=1), id="two-slots-in-turn-one-fault"),
        pytest.param(Scenario(SKIP, interruptions=0, most_faults=1, **DEATHS), id="a-death"),
        pytest.param(Scenario(ALLOW, slots=2, interruptions=0, most_faults=1, **DEATHS), id="two-slots-a-death"),
        pytest.param(Scenario(BUFFER, slots=2, interruptions=0, most_faults=1, **DEATHS), id="two-in-turn-a-death"),
    ],
)
def test_every_slot_runs_once(scenario: Scenario):
    assert_clean(explore(scenario)[1])


MORE = [
    pytest.param(Scenario(SKIP, schedulers=3, slots=2, interruptions=4, most_faults=3), id="skip"),
    pytest.param(Scenario(ALLOW, schedulers=3, slots=2, interruptions=4, most_faults=3), id="allow_all"),
    pytest.param(Scenario(BUFFER, schedulers=2, slots=3, interruptions=4, most_faults=3), id="buffer_all"),
    pytest.param(Scenario(SKIP, schedulers=3, slots=2, interruptions=4, most_faults=3, **DEATHS), id="skip-death"),
    pytest.param(
        Scenario(ALLOW, schedulers=3, slots=2, interruptions=4, most_faults=3, **DEATHS), id="allow_all-death"
    ),
    pytest.param(
        Scenario(BUFFER, schedulers=2, slots=3, interruptions=4, most_faults=3, **DEATHS), id="buffer_all-death"
    ),
]


@pytest.mark.parametrize("scenario", MORE)
def test_every_slot_runs_once_with_more_of_everything(scenario: Scenario):
    assert_clean(sample(scenario, seed=1, number=200))


@pytest.mark.faults
@pytest.mark.timeout(600)  # eighty seconds of an idle processor
@pytest.mark.parametrize("scenario", MORE)
def test_every_slot_runs_once_in_very_many_orders(scenario: Scenario):
    assert_clean(sample(scenario, seed=2, number=30_000))


# -- rules dropped -------------------------------------------------------------------------------------------------


class MarksFirst(Publishing):
    """Moves the watermark before it publishes."""

    def first(self, slot: Any, looked: float, publish: Any) -> bool | None:
        Watermarks(self._store).move(slot.entry, slot.at, slot.at)
        return super().first(slot, looked, publish)


class LatestOnly(Publishing):
    """Takes a slot that another scheduler has in hand for settled."""

    def first(self, slot: Any, looked: float, publish: Any) -> bool | None:
        return super().first(slot, looked, publish) or False


class NeverAgain(Lookout):
    """Does not look for messages that were lost."""

    def look(self, *args: Any) -> None:
        pass


def scenario_with(kind: type[Any], **options: Any) -> Scenario:
    def keeper(bench: Bench) -> Timekeeper:
        made = bench.keeper(republish_after=5)
        part = made._publishing if issubclass(kind, Publishing) else made._lookout
        part.__class__ = kind
        return made

    return Scenario(options.pop("entry", SKIP), keeper=keeper, **options)


def test_a_mark_that_moves_before_the_message_loses_slots():
    _, outcome = explore(scenario_with(MarksFirst, interruptions=0, most_faults=1))

    assert outcome is not None and "lost" in outcome.problem


def test_a_slot_in_hand_is_not_a_slot_settled():
    outcome = sample(scenario_with(LatestOnly, schedulers=3, interruptions=4, most_faults=3), seed=1, number=3000)

    assert outcome is not None and "lost" in outcome.problem


class TakesRefusalForKnown(Publishing):
    """Believes that whoever has taken its claim over has published, too."""

    def _is_in_other_hands(self, slot: Any) -> bool:
        return True


def test_who_takes_a_claim_over_may_die_before_it_publishes():
    options = {"schedulers": 3, "slots": 2, "interruptions": 4, "most_faults": 3}
    outcome = sample(scenario_with(TakesRefusalForKnown, **options), seed=2, number=3000)

    assert outcome is not None and "lost" in outcome.problem


def test_a_lost_message_must_be_looked_for():
    _, outcome = explore(scenario_with(NeverAgain, interruptions=0, most_faults=1))

    assert outcome is not None and "lost" in outcome.problem


class LeavesTheDead(Publishing):
    """Takes a run that has begun for one that will end."""

    def again(self, *args: Any) -> bool:
        return False


class ForgetsWhoWasOvertaken(Lookout):
    """Looks at who has the entry of the run, and at nobody else."""

    def _look_for_overtaken(self, *args: Any) -> bool:
        return False


@pytest.mark.parametrize("kind", [LeavesTheDead, ForgetsWhoWasOvertaken])
def test_a_run_that_died_must_be_looked_for(kind: type[Any]):
    options = {"slots": 2, "interruptions": 4, "most_faults": 3, **DEATHS}
    outcome = sample(scenario_with(kind, entry=BUFFER, **options), seed=1, number=3000)

    assert outcome is not None and "lost" in outcome.problem
