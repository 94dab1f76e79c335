from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.configurations import CONFIGURATIONS, LONG, WHOLE, covers
from tests.model.explore import Model, Result, explore
from tests.model.mutants import MUTANTS
from tests.model.world import Config

_LARGE = {
    name: MUTANTS[name].config
    for name in ("repeat after an end", "release replaces an end", "release beside an end forgotten")
}
"""Explored whole in the long runs."""


def _apart() -> dict[str, Config]:
    """What mutants are shown with, and no other exploration of the suite covers: each is explored once."""
    apart: dict[str, Config] = {}
    for name, mutant in sorted(MUTANTS.items(), key=lambda each: -each[1].config.budget):
        known = [*CONFIGURATIONS.values(), *apart.values()]
        if name not in _LARGE and not any(covers(config, mutant.config) for config in known):
            apart[name] = mutant.config
    return apart


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_nothing_goes_wrong(name: str) -> None:
    _assert_clean(explore(Model(CONFIGURATIONS[name])))


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", LONG)
def test_nothing_goes_wrong_with_more_faults(name: str) -> None:
    _assert_clean(explore(Model(LONG[name])))


@pytest.mark.parametrize("name", MUTANTS)
def test_no_rule_can_be_dropped(name: str) -> None:
    mutant = MUTANTS[name]

    assert explore(Model(mutant.config, mutant.rules, mutant.behaviour)).kinds == [mutant.kind]


@pytest.mark.parametrize("name", [*_apart(), *[pytest.param(name, marks=pytest.mark.faults) for name in _LARGE]])
def test_what_a_dropped_rule_breaks_is_whole_with_it(name: str) -> None:
    _assert_clean(explore(Model(MUTANTS[name].config)))


def test_the_readme_says_what_each_configuration_is_for() -> None:
    rows = (Path(__file__).parent / "model" / "README.md").read_text().splitlines()

    assert [name for name in WHOLE if not any(row.startswith(f"| {name} | ") for row in rows)] == []


def _assert_clean(result: Result) -> None:
    assert result.complete
    assert not result.violations, "\n".join(str(violation) for violation in result.violations)
