"""One process at a time does the work; the others print who does it.

python examples/hold.py & python examples/hold.py & wait
"""

import tempfile
import time
from pathlib import Path

from taskguard import DuplicateTaskError, Guard

guard = Guard(f"sqlite:///{Path(tempfile.gettempdir()) / 'taskguard-example.db'}")

try:
    with guard.hold("nightly report", lease=5) as fence:
        print(f"working under token {fence.token}")
        for _ in range(10):
            time.sleep(0.05)
            fence.check()  # before each step that must not happen twice
        print("done")
except DuplicateTaskError as held:
    print(f"nothing to do: {held}")
