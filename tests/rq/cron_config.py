"""What the crons of a test run: it is told in the environment."""

from __future__ import annotations

import json
import os

from taskguard.rq.cron import register
from tests.rq import timed
from tests.rq.scene import ENTRIES

for entry in json.loads(os.environ[ENTRIES]):
    register(getattr(timed, entry.pop("function")), **entry)
