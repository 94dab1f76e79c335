"""A virtual environment for each extra, with the distributions that the extra requires and no others.

They are links to what is installed here, found by what each distribution says that it requires: nothing is downloaded,
and an environment is made in a fraction of a second. `tests/cli/test_extras.py` also installs one for real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings along

ROOT = Path(__file__).parent.parent
NAME = "celery-taskguard"


def declared() -> dict[str, list[str]]:
    """Each extra with its requirements, as `pyproject.toml` says now: what is installed here may have been older."""
    extras: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return extras


def required(extras: tuple[str, ...]) -> dict[str, Distribution]:
    """The distributions that `celery-taskguard[extras]` needs, with all that those need."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(f"{NAME}[{','.join(extras)}]")]
    while todo:
        requirement = todo.pop()
        name, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        if name == NAME:
            texts = [text for extra in sorted(wanted) for text in declared()[extra]]
        else:
            found[name] = distribution(name)
            texts = found[name].requires or []
        todo += [needed for text in texts if _applies(needed := Requirement(text), wanted)]
    return found


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


class Environment:
    """Python with `celery-taskguard[extras]`, and nothing else."""

    def __init__(self, folder: Path, *extras: str) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.python = folder / "bin" / "python"
        self.packages = next(folder.glob("lib/python*/site-packages"))
        (self.packages / "taskguard").symlink_to(ROOT / "taskguard")
        for package in required(extras).values():
            for top in _tops(package):
                (self.packages / top).symlink_to(Path(str(package.locate_file(top))))

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """The command line in it. Of the test's own variables it has none that name Python or taskguard."""
        return self.python_with("-m", "taskguard.cli", *arguments, **variables)

    def python_with(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TASKGUARD_"))}
        return subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=self.packages.parents[2],
            env={**kept, **variables},
        )


def _tops(package: Distribution) -> Iterator[str]:
    """What a distribution has put into site-packages, without what is deeper; and without its programs."""
    tops = {path.parts[0] for path in package.files or ()}
    return (top for top in sorted(tops) if top not in ("..", "__pycache__"))


def described(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a failed test shows of a command."""
    return {"code": answer.returncode, "out": answer.stdout, "err": answer.stderr}
