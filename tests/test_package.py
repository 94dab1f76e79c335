"""What is shipped: all that is needed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, timeout=100)
    (built,) = folder.glob("celery_taskguard-*.whl")
    return zipfile.ZipFile(built).namelist()


def test_scripts_and_the_marker_of_types_are_in_the_wheel(wheel: list[str]):
    scripts = [str(path.relative_to(ROOT)) for path in (ROOT / "taskguard").rglob("*.[ls][uq][al]")]

    assert len(scripts) >= 10
    assert {"taskguard/py.typed", *scripts} <= set(wheel)


def test_nothing_but_the_package_is_in_the_wheel(wheel: list[str]):
    assert {name.partition("/")[0].partition("-")[0] for name in wheel} == {"taskguard", "celery_taskguard"}


def test_no_dependency_is_required():
    metadata = (ROOT / "pyproject.toml").read_text()

    assert "\ndependencies = []\n" in metadata
