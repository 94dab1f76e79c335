"""Makes the metadata that needs the repository's address: links that lead somewhere on PyPI too.

python hatch_build.py      is this ready to be released? Exits with 1 and says what is not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

PLACEHOLDER = "https://repository.invalid/taskguard"
REPOSITORY = PLACEHOLDER
"""Where the repository is. Write its address here before the first release; this is the only place."""

ROOT = Path(__file__).parent
_RELATIVE = re.compile(r"\]\((?!https?://|#)([^)]+)\)")


def readme() -> str:
    """The README with absolute links, as PyPI shows it."""
    text = (ROOT / "README.md").read_text()
    return _RELATIVE.sub(rf"]({REPOSITORY}/blob/main/\1)", text)


def urls() -> dict[str, str]:
    return {
        "Homepage": REPOSITORY,
        "Documentation": f"{REPOSITORY}/tree/main/docs",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
    }


def problems() -> list[str]:
    """What stands in the way of a release."""
    found = []
    if REPOSITORY == PLACEHOLDER:
        found.append(f"hatch_build.py: REPOSITORY is still {PLACEHOLDER}; write the repository's address")
    heading = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if heading is None or "unreleased" in heading[1]:
        found.append("CHANGELOG.md: its newest section is not dated; write the version and the day")
    return found


try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ModuleNotFoundError:  # only a build needs it
    pass
else:

    class AddressHook(MetadataHookInterface):
        def update(self, metadata: dict[str, Any]) -> None:
            metadata["urls"] = urls()
            metadata["readme"] = {"content-type": "text/markdown", "text": readme()}


if __name__ == "__main__":
    for problem in problems():
        print(problem, file=sys.stderr)
    sys.exit(bool(problems()))
