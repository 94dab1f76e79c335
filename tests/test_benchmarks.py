"""Benchmarks use what is private, and nobody runs them with the tests: each name that they import must be there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("taskguard", "tests", "benchmarks")


def imported(path: Path) -> list[tuple[str, str]]:
    statements = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [
        (statement.module, alias.name)
        for statement in statements
        if statement.module is not None and statement.module.partition(".")[0] in OURS
        for alias in statement.names
    ]


def is_there(module: str, name: str) -> bool:
    if hasattr(import_module(module), name):
        return True
    try:
        import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path: Path):
    assert [(module, name) for module, name in imported(path) if not is_there(module, name)] == []
