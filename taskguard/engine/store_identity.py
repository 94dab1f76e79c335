"""Which store a process uses: if a publisher and a worker use different stores, nothing is guarded.

The first process that uses a store gives it a random name, as the owner of one reserved entry. The name travels with
each message. If a worker finds another name in its own store, it refuses the message, unless its store is younger than
the message: then the store was emptied or replaced since, and the message is still valid.
"""

from __future__ import annotations

import os
import time

from taskguard.guard import Guard
from taskguard.protocol.policy import LONGEST
from taskguard.protocol.store import Claim, Held, Lease

KEY = "taskguard:identity"
ASK_AGAIN = 60.0
"""Seconds for which a process trusts the name it knows. In an emptied store it then writes that name again."""
TOLERANCE = 2 * ASK_AGAIN + 60.0
"""Seconds: publishers may use the old name of an emptied store for a while, and clocks differ."""


class Identity:
    def __init__(self) -> None:
        self._name = ""
        self._since = 0.0
        self._asked = float("-inf")

    def name(self, guard: Guard, patience: float) -> str:
        """The name of this process's store."""
        if not self.known:
            self._ask(guard, self._name or os.urandom(8).hex(), patience)
        return self._name

    @property
    def known(self) -> str:
        """The name, if it is known without asking; else nothing."""
        return self._name if time.monotonic() - self._asked <= ASK_AGAIN else ""

    def is_other(self, guard: Guard, name: str, at: float) -> bool:
        """Whether a message that was published under *name*, at the time *at*, belongs to another store."""
        if not name or name == self._name:
            return False
        # Not with the message's name: a worker that uses the wrong store, an empty one, would give it the name of the
        # right one.
        self._ask(guard, self._name or os.urandom(8).hex(), guard.patience)
        return name != self._name and at > self._since + TOLERANCE

    def _ask(self, guard: Guard, name: str, patience: float) -> None:
        claim = Claim(KEY, name, os.urandom(12).hex(), state="queued", lease=LONGEST, keep_for=LONGEST)
        _, answer = guard.ask(claim, report=False, patience=patience)
        if isinstance(answer, Lease):
            self._name, self._since = name, time.time()
        elif isinstance(answer, Held):
            self._name, self._since = answer.owner, answer.since
        self._asked = time.monotonic()
