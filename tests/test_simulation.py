"""Whole histories by chance: the shipped machines over the shipped rules; and every fault put back in is found."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard.engine.worker import Delivery
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import Style, Violation, World

STYLES: list[Style] = ["celery", "rq"]
AT_MOST = 2500
"""Histories within which a fault must show, of both styles together."""


def told(style: Style, seed: int, machine: type[Delivery] = Delivery) -> str:
    """What goes wrong in that history, and its end; empty if nothing does."""
    world = World(seed, style, delivery=machine)
    try:
        world.run()
    except Violation as violation:
        return "\n".join([f"{style} {seed}: {violation}", *world.story[-40:]])
    return ""


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("first", range(0, 800, 200))
def test_no_history_loses_or_doubles_work(style: Style, first: int):
    for seed in range(first, first + 200):
        assert not (problem := told(style, seed)), problem


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("style", STYLES)
def test_no_history_of_very_many_loses_or_doubles_work(style: Style):
    for seed in range(1000, 21000):
        assert not (problem := told(style, seed)), problem


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_fault_that_is_put_back_is_found(mutant: Any):
    assert any(told(style, seed, mutant) for seed in range(AT_MOST // 2) for style in STYLES)
