"""A publisher in a process of its own: `python -m tests.celery.publisher NUMBER CALLS KEYS FILE`.

It writes the ids that it got to the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.celery.tasks import jobs


def main() -> None:
    number, calls, keys = map(int, sys.argv[1:4])
    named = [f"storm-{(number * calls + n * 7) % keys}" for n in range(calls)]
    ids = [jobs["job"].apply_async((key, "take a moment"), {"value": key}).id for key in named]
    Path(sys.argv[4]).write_text("\n".join(ids))


if __name__ == "__main__":
    main()
