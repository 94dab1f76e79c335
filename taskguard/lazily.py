"""Import public names on first use, so that code which needs one of them does not pay for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of *module*; *homes* maps each submodule to the names it defines."""
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(import_module(module), name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(import_module(module)), *home_of})

    return find, names
