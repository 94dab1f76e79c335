"""Only what the reference lists is public."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "taskguard"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))]


def listed() -> dict[str, set[str]]:
    page = (ROOT / "docs" / "reference.md").read_text()
    sections = re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    return {module: set(re.findall(r"^\| `(\w+)` \|", text, re.M)) for module, text in sections}


def exported() -> dict[str, set[str]]:
    """What each module that has an `__all__` says in it; read, not imported: some need a driver."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                found[module] = set(ast.literal_eval(statement.value))
    return found


def test_the_reference_lists_what_the_modules_export_and_nothing_else():
    assert listed() == exported()


NEEDS_MORE = {"taskguard.celery.beat", "taskguard.rq.django"}
"""They have names that need a package of others, or its settings; their own tests have those."""


@pytest.mark.parametrize("module", sorted(listed().keys() - NEEDS_MORE))
def test_a_listed_name_can_be_had(module: str):
    assert [name for name in listed()[module] if not hasattr(import_module(module), name)] == []


def test_a_misspelt_name_is_an_attribute_error():
    for module in ("taskguard", "taskguard.rq", "taskguard.stores", "taskguard.testing"):
        with pytest.raises(AttributeError, match="no attribute 'Gaurd'"):
            _ = import_module(module).Gaurd


def imported(text: str) -> set[tuple[str, str]]:
    """What a page imports from us, in code or in text."""
    found = re.findall(r"from (taskguard[\w.]*) import \(?([\w, ]+)", text)
    return {(module, name.strip()) for module, names in found for name in names.split(",") if name.strip()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_imports_what_is_not_public(page: Path):
    public = listed()

    assert {
        (module, name) for module, name in imported(page.read_text()) if name not in public.get(module, ())
    } == set()


def test_no_private_name_stands_at_the_top():
    """Whatever is not public lives in a package that says what it is about."""
    assert {path.stem for path in PACKAGE.glob("*.py")} == {
        "__init__", "errors", "events", "fence", "guard", "history", "lazily"
    }  # fmt: skip
