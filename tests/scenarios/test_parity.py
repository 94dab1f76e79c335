"""The lists of what one queue alone can show name what is there, all of it, and nothing else."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.scenarios.parity import MISSING, OWN
from tests.scenarios.queues import CELERY, RQ

HERE = Path(__file__).parent


def _scenarios() -> set[str]:
    """The tests that are run on queues."""
    found = [node for path in HERE.glob("test_*.py") for node in ast.parse(path.read_text()).body]
    functions = [node for node in found if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {node.name for node in functions if {"queue", "workers"} & {given.arg for given in node.args.args}}


@pytest.mark.parametrize("queue_name", [CELERY, RQ])
def test_what_a_queue_cannot_show_is_a_scenario_of_the_other_and_says_why(queue_name: str):
    assert sorted(set(MISSING[queue_name]) - _scenarios()) == []
    assert all(reason.endswith(".") for reason in MISSING[queue_name].values())


def test_each_scenario_runs_somewhere():
    assert sorted(set(MISSING[CELERY]) & set(MISSING[RQ])) == []


@pytest.mark.parametrize("queue_name", [CELERY, RQ])
def test_the_files_of_one_queue_say_why_they_are_not_scenarios(queue_name: str):
    assert sorted(OWN[queue_name]) == sorted(path.stem for path in (HERE.parent / queue_name).glob("test_*.py"))


def test_a_fact_has_one_place():
    """A test of one name in two of the directories is a fact of both queues: it belongs here, and only here."""
    named = [_tests_in(HERE), *(_tests_in(HERE.parent / queue_name) for queue_name in (CELERY, RQ))]
    twice = Counter(name for names in named for name in names)

    assert sorted(name for name, places in twice.items() if places > 1) == []


def _tests_in(directory: Path) -> set[str]:
    found = [node for path in directory.glob("test_*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return {node.name for node in found if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
