"""A report that two holders write: the one that was replaced is refused, and a reader sees a whole file.

python examples/fenced_file.py
"""

import json
import tempfile
from pathlib import Path

from taskguard import Guard, StaleFenceError
from taskguard.fencing.files import fenced_replace

guard = Guard("memory://")
report = Path(tempfile.mkdtemp()) / "report.json"

with guard.hold("report") as slow:
    pass  # it computes, and its process is stopped for so long that its lease is over

with guard.hold("report") as newer:
    fenced_replace(report, json.dumps({"rows": 1200}), newer)

try:
    fenced_replace(report, json.dumps({"rows": 1100}), slow)  # it wakes, and goes on where it was
except StaleFenceError as refused:
    print(refused)

print(report.read_text())
assert json.loads(report.read_text()) == {"rows": 1200}
