"""Names of other packages that these may change without notice: which we need, what for, and whether they are there.

Each queue has its list, `internals.py` in its package. A module that uses some of these names requires them as it is
imported, so that a version which has no such name is an error there, and not a guard that silently does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from taskguard.errors import ConfigurationError

Used = tuple[str, ...]
"""Names that a module or a class of another package has. Constants only: a work horse imports them for each job.

1. `module` or `module:Class`.
2. The names, separated by spaces.
3. What they are used for.
4. If only some versions have them, and we do without in others: which, as `>=5.7` or `<2.9`.
"""


def require(used: tuple[Used, ...], tested: Mapping[str, str]) -> None:
    """ConfigurationError if a name is missing. *tested*: the versions that were tested, by the package's module."""
    for one in used:
        if len(one) == 3 and (missing := missing_of(one)):
            raise ConfigurationError(problem_with(one, missing, tested))


def missing_of(used: Used) -> list[str]:
    """The full names of those that the installed version does not have."""
    module, _, kind = used[0].partition(":")
    owner: Any = sys.modules.get(module) or import_module(module)
    if kind:
        owner = getattr(owner, kind, None)
    return [f"{used[0].replace(':', '.')}.{name}" for name in used[1].split() if not _has(owner, name)]


def _has(owner: Any, name: str) -> bool:
    if hasattr(owner, name):
        return True
    # What instances get as they are made is in no class, but its name is in the code that makes them.
    return isinstance(owner, type) and any(name in _names_in(vars(kind).get("__init__")) for kind in owner.__mro__)


def _names_in(function: Any) -> tuple[str, ...]:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    names: tuple[str, ...] = function.__code__.co_names if hasattr(function, "__code__") else ()
    return names


def problem_with(used: Used, missing: list[str], tested: Mapping[str, str]) -> str:
    from importlib.metadata import version

    where, _, use, *_ = used
    root = where.partition(":")[0].partition(".")[0]
    package = {"django_celery_beat": "django-celery-beat", "redbeat": "celery-redbeat"}.get(root, root)
    return (
        f"taskguard needs {', '.join(missing)} ({use}), which {package} {version(package)} does not have; "
        f"this taskguard was tested with {package} {tested[root]}: install one of these versions, or a newer taskguard"
    )
