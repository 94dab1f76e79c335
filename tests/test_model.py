from __future__ import annotations

import pytest

from tests.model.configurations import CONFIGURATIONS, LONG
from tests.model.explore import Model, Result, explore
from tests.model.mutants import MUTANTS
from tests.model.world import Config

_APART: dict[Config, str] = {
    mutant.config: name for name, mutant in MUTANTS.items() if mutant.config not in CONFIGURATIONS.values()
}
"""Many rules are shown by one configuration; it is explored once."""
_LARGE = ("overdue not published", "release replaces an end")
"""Explored whole in the long runs."""


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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.faults) if name in _LARGE else name for name in _APART.values()]
)
def test_what_a_dropped_rule_breaks_is_whole_with_it(name: str) -> None:
    _assert_clean(explore(Model(MUTANTS[name].config)))


def _assert_clean(result: Result) -> None:
    assert result.complete
    assert not result.violations, "\n".join(str(violation) for violation in result.violations)
