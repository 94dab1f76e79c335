"""What is shipped: all that is needed, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, timeout=100)
    (built,) = folder.glob("celery_taskguard-*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(wheel_path: Path) -> list[str]:
    return zipfile.ZipFile(wheel_path).namelist()


def test_scripts_and_the_marker_of_types_are_in_the_wheel(wheel: list[str]):
    scripts = [str(path.relative_to(ROOT)) for path in (ROOT / "taskguard").rglob("*.[ls][uq][al]")]

    assert len(scripts) >= 10
    assert {"taskguard/py.typed", *scripts} <= set(wheel)


def test_nothing_but_the_package_is_in_the_wheel(wheel: list[str]):
    assert {name.partition("/")[0].partition("-")[0] for name in wheel} == {"taskguard", "celery_taskguard"}


def test_no_dependency_is_required():
    metadata = (ROOT / "pyproject.toml").read_text()

    assert "\ndependencies = []\n" in metadata


@pytest.fixture(scope="module")
def metadata(wheel_path: Path) -> Message:
    archive = zipfile.ZipFile(wheel_path)
    [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
    return message_from_string(archive.read(name).decode())


def test_every_link_of_the_page_on_pypi_is_absolute(metadata: Message):
    links = re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload()))

    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_metadata_says_where_the_project_is(metadata: Message):
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))

    assert {"Homepage", "Documentation", "Changelog", "Source", "Issues"} <= urls.keys()


def check_release(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "hatch_build.py"], cwd=folder, capture_output=True, text=True)


def test_a_release_is_refused_until_the_address_and_the_changelog_are_written(tmp_path: Path):
    source, changes = (ROOT / "hatch_build.py").read_text(), (ROOT / "CHANGELOG.md").read_text()
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.1.0 (unreleased)\n")
    (tmp_path / "hatch_build.py").write_text(source)

    refused = check_release(tmp_path)
    assert refused.returncode == 1
    assert "write the repository's address" in refused.stderr
    assert "write the version and the day" in refused.stderr

    (tmp_path / "CHANGELOG.md").write_text(changes.replace("(unreleased)", "(2026-12-01)"))
    (tmp_path / "hatch_build.py").write_text(
        source.replace("REPOSITORY = PLACEHOLDER", 'REPOSITORY = "https://code.example/taskguard"')
    )
    assert check_release(tmp_path).returncode == 0
