"""What type checkers say of guarded tasks: each call and each option that is wrong, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGES = ["celery_tasks.py", "rq_jobs.py"]
Errors = dict[str, dict[int, str]]
"""By file and line."""


def found_by_mypy() -> Errors:
    files = [str(HERE / page) for page in PAGES]
    command = [_program("mypy"), "--config-file", str(HERE / "mypy.ini"), "--no-pretty", *files]
    answer = _ran(command)
    found: Errors = {page: {} for page in PAGES}
    for path, line, text in re.findall(r"^(.*?):(\d+): error: (.*)$", answer.stdout, re.M):
        found.setdefault(Path(path).name, {})[int(line)] = text
    return found


def found_by_pyright() -> Errors:
    command = [_program("basedpyright"), "-p", str(HERE), "--pythonpath", sys.executable, "--outputjson"]
    answer = _ran(command)
    found: Errors = {page: {} for page in PAGES}
    for problem in json.loads(answer.stdout)["generalDiagnostics"]:
        if problem["severity"] == "error":
            found.setdefault(Path(problem["file"]).name, {})[problem["range"]["start"]["line"] + 1] = problem["message"]
    return found


def _program(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"{name} is not installed in this environment")
    return str(path)


def _ran(command: list[str]) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, cwd=HERE.parent.parent)
    assert answer.returncode == 1, answer.stdout + answer.stderr  # there are errors, and they could be counted
    return answer


@pytest.mark.long
@pytest.mark.parametrize("checker", [found_by_mypy, found_by_pyright])
def test_what_is_wrong_is_an_error_and_nothing_else_is(checker: object):
    is_mypy = checker is found_by_mypy
    found = found_by_mypy() if is_mypy else found_by_pyright()

    assert set(found) == set(PAGES), found
    for page in PAGES:
        lines = (HERE / page).read_text().splitlines()
        wrong = {number for number, line in enumerate(lines, 1) if ")  # wrong" in line}
        if is_mypy:
            wrong -= {number for number, line in enumerate(lines, 1) if "Any to mypy" in line}
        missed = {number: lines[number - 1] for number in wrong - found[page].keys()}
        false = {number: found[page][number] for number in found[page].keys() - wrong}
        assert (missed, false) == ({}, {}), page
        assert len(wrong) > 8
