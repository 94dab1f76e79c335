"""Whoever reads a module of the RQ layer finds what it needs below it, and nothing that needs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules(package: str) -> dict[str, ast.Module]:
    found = {}
    for path in (ROOT / package.replace(".", "/")).glob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    """What is imported when the code runs, at the top or within a function; not what type checkers alone read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from imports(node)


def test_rq_has_no_import_cycle():
    trees = modules("taskguard.rq")
    graph = {
        name: {found for found in imports(tree) if found in trees and found != name} for name, tree in trees.items()
    }

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' -> '.join(error.args[1])}")
