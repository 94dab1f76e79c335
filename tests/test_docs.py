"""What the documents say is run, and what they point to exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.parity import MISSING
from tests.scenarios.queues import CELERY, RQ

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_code_block_runs(block: str, tmp_path: Path):
    if "StoreContract" in block or "def test_" in block:  # a test file: run as one
        (tmp_path / "test_block.py").write_text(block)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_block.py"]
    else:
        command = [sys.executable, "-c", block]
    # Of pytest's plug-ins a block names those that it needs; all that are installed here take seconds to import.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=environment)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path):
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_somewhere(page: Path):
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_promises_of_the_protocol_are_all_there():
    from taskguard.protocol.store import Store

    assert [number for number in range(1, 9) if f"\n    {number}. " not in (Store.__doc__ or "")] == []


EVENTS = re.compile(r"^\| event \| .* \|\n\|---\|---\|\n((?:\|.*\n)+)", re.M)
TESTED = dict(zip((CELERY, RQ), EVENTS.findall((ROOT / "docs" / "events-tested.md").read_text()), strict=True))


def _cells(table: str) -> list[tuple[str, str]]:
    rows = [row.strip().strip("|").split(" | ") for row in table.splitlines()]
    return [(event.strip(), rest.strip()) for event, rest in rows]


@pytest.mark.parametrize("queue", [CELERY, RQ])
def test_each_event_of_a_queue_is_in_the_list_of_tests(queue: str):
    events = EVENTS.findall((ROOT / "docs" / f"{queue}.md").read_text())

    assert len(events) == 1
    assert [event for event, _ in _cells(events[0])] == [event for event, _ in _cells(TESTED[queue])]
    assert len(_cells(events[0])) > 30


@pytest.mark.parametrize(
    ("queue", "tests"),
    [
        pytest.param(queue, tests, id=f"{queue}-{event[:60]}")
        for queue, table in TESTED.items()
        for event, tests in _cells(table)
    ],
)
def test_each_event_has_tests(queue: str, tests: str):
    places = (ROOT / "tests" / queue, ROOT / "tests" / "scenarios")
    written = "\n".join(path.read_text() for place in places for path in place.glob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", tests)

    assert named and not MISSING[queue].keys() & set(named)
    assert [name for name in named if f"def {name}(" not in written] == []
