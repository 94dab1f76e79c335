"""Which store a process looks at: a publisher and a worker that look at different ones guard nothing.

A store is given a random name by whoever uses it first, kept as the owner of one reserved entry. The name travels with
each message. A worker that finds another name in its own store refuses the message, unless its store is younger than
the message: then the store was emptied or replaced since, and the message is none the worse for it.
"""

from __future__ import annotations

import os
import time

from taskguard.guard import Guard
from taskguard.protocol.policy import LONGEST
from taskguard.protocol.store import Claim, Held, Lease

KEY = "taskguard:identity"
ASK_AGAIN = 60.0
"""A process believes what it knows for so long. In a store that was emptied it then writes the name that it knows."""
TOLERANCE = 2 * ASK_AGAIN + 60.0
"""Publishers may go on with the old name of an emptied store for a while, and clocks differ."""


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
        # Not with the name that the message has: a worker that looks at the wrong store, an empty one, would give it
        # the name of the right one.
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
