"""One of several publishers, in a process of its own: `python -m tests.celery.publisher NUMBER OF CALLS KEYS FILE`.

Together they call each key equally often, in any order. It writes the ids that it got to the file.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.celery.tasks import jobs


def main() -> None:
    number, publishers, calls, keys = map(int, sys.argv[1:5])
    everyones = [f"storm-{n % keys}" for n in range(publishers * calls)]
    random.Random(keys).shuffle(everyones)
    own = everyones[number * calls : (number + 1) * calls]
    ids = [jobs["job"].apply_async((key, "take a moment"), {"value": key}).id for key in own]
    Path(sys.argv[5]).write_text("\n".join(ids))


if __name__ == "__main__":
    main()
