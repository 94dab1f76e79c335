"""Each event of the table in `docs/rq.md` has a test of the name that stands beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios.parity import MISSING
from tests.scenarios.queues import RQ

ROOT = Path(__file__).parents[2]


def _rows() -> list[str]:
    page = (ROOT / "docs" / "rq.md").read_text()
    table = page.partition("| event | entry | test |\n|---|---|---|\n")[2].partition("\n\n")[0]
    return table.splitlines()


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row.split("|")[1].strip()[:40])
def test_each_event_of_the_table_has_a_test(row: str):
    places = (ROOT / "tests" / "rq", ROOT / "tests" / "scenarios")
    tests = "\n".join(path.read_text() for place in places for path in place.glob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", row.split("|")[3])

    assert named and not MISSING[RQ].keys() & set(named)
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_the_table_of_events_is_there():
    assert len(_rows()) > 30
