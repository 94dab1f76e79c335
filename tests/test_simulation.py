"""Whole histories by chance: the shipped machines over the shipped rules; and every fault put back in is found."""

from __future__ import annotations

import pytest

from tests.simulation.judge import Style, Violation
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import Code, World

STYLES: list[Style] = ["celery", "rq"]
SEEDS = 800
"""Histories of each style that the suite runs; a fault that is put back shows in one of them."""


def told(style: Style, seed: int, code: Code | None = None) -> str:
    """What goes wrong in that history, and its end; empty if nothing does."""
    world = World(seed, style, code)
    try:
        world.run()
    except Violation as violation:
        return "\n".join([f"{style} {seed}: {violation}", *world.story[-40:]])
    return ""


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("first", range(0, SEEDS, 200))
def test_no_history_loses_or_doubles_work(style: Style, first: int):
    for seed in range(first, first + 200):
        assert not (problem := told(style, seed)), problem


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("style", STYLES)
def test_no_history_of_very_many_loses_or_doubles_work(style: Style):
    for seed in range(1000, 21000):
        assert not (problem := told(style, seed)), problem


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_that_is_put_back_is_found(name: str):
    assert any(told(style, seed, MUTANTS[name]) for seed in range(SEEDS) for style in STYLES)
