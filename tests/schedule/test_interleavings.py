"""No order of steps and no fault loses a slot or runs it twice; and each rule of the protocol is needed for that."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard.schedule import Timekeeper
from tests.schedule.bench import Bench, every
from tests.schedule.interleavings import Outcome, Scenario, explore, sample

SKIP = every(10, catch_up="all")
ALLOW = every(10, catch_up="all", overlap="allow_all")
BUFFER = every(10, catch_up="all", overlap="buffer_all")


def assert_clean(outcome: Outcome | None) -> None:
    assert outcome is None, "\n".join([outcome.problem, *outcome.trace])


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(Scenario(SKIP, interruptions=1, most_faults=0), id="one-interruption"),
        pytest.param(Scenario(SKIP, interruptions=0, most_faults=1), id="one-fault"),
        pytest.param(Scenario(ALLOW, slots=2, interruptions=0, most_faults=1), id="two-slots-one-fault"),
        pytest.param(Scenario(BUFFER, slots=2, interruptions=0, most_faults=1), id="two-slots-in-turn-one-fault"),
    ],
)
def test_every_slot_runs_once(scenario: Scenario):
    assert_clean(explore(scenario)[1])


MORE = [
    pytest.param(Scenario(SKIP, schedulers=3, slots=2, interruptions=4, most_faults=3), id="skip"),
    pytest.param(Scenario(ALLOW, schedulers=3, slots=2, interruptions=4, most_faults=3), id="allow_all"),
    pytest.param(Scenario(BUFFER, schedulers=2, slots=3, interruptions=4, most_faults=3), id="buffer_all"),
]


@pytest.mark.parametrize("scenario", MORE)
def test_every_slot_runs_once_with_more_of_everything(scenario: Scenario):
    assert_clean(sample(scenario, seed=1, number=300))


@pytest.mark.faults
@pytest.mark.parametrize("scenario", MORE)
def test_every_slot_runs_once_in_very_many_orders(scenario: Scenario):
    assert_clean(sample(scenario, seed=2, number=30_000))


# -- rules dropped -------------------------------------------------------------------------------------------------


class MarksFirst(Timekeeper):
    """Moves the mark before it publishes."""

    def _publish(self, slot: Any, looked: float, publish: Any) -> bool | None:
        self._marks.move(slot.entry, slot.at, slot.at)
        return super()._publish(slot, looked, publish)


class LatestOnly(Timekeeper):
    """Takes a slot that another scheduler has in hand for settled."""

    def _publish(self, slot: Any, looked: float, publish: Any) -> bool | None:
        return super()._publish(slot, looked, publish) or False


class NeverAgain(Timekeeper):
    """Does not look for messages that were lost."""

    def _look_for_lost_messages(self, *args: Any) -> None:
        pass


def scenario_with(kind: type[Timekeeper], **options: Any) -> Scenario:
    def keeper(bench: Bench) -> Timekeeper:
        made = bench.keeper(republish_after=5)
        made.__class__ = kind
        return made

    return Scenario(options.pop("entry", SKIP), keeper=keeper, **options)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [(MarksFirst, "lost"), (LatestOnly, "lost"), (NeverAgain, "lost")],
)
def test_no_rule_of_the_protocol_can_be_dropped(kind: type[Timekeeper], problem: str):
    _, outcome = explore(scenario_with(kind, interruptions=1, most_faults=1), most=20_000)

    assert outcome is not None and problem in outcome.problem
