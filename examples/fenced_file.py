"""Two holders write a report: `fenced_replace` refuses the superseded one, and a reader always sees a whole file.

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
    pass  # its process is stopped until its lease has expired

with guard.hold("report") as newer:
    fenced_replace(report, json.dumps({"rows": 1200}), newer)

try:
    fenced_replace(report, json.dumps({"rows": 1100}), slow)  # it wakes and continues
except StaleFenceError as refused:
    print(refused)

print(report.read_text())
assert json.loads(report.read_text()) == {"rows": 1200}
