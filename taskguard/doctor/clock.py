"""Whether this host's clock agrees with the store's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

from taskguard.doctor.finding import Finding, Patient
from taskguard.protocol.store import Claim, Ending, Lease

MOST = 1.0
"""Seconds by which clocks may differ, beside what the question itself took."""


def agrees(patient: Patient) -> Iterator[Finding]:
    """Leases end by the store's clock alone; delays, time-outs of waiting and schedules go by the host's."""
    if patient.store.guarantees.clock != "the server's":
        return
    ahead, unsure = _difference(patient)
    if abs(ahead) - unsure > MOST:
        which = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            "TG105",
            "warning",
            repr(patient.store),
            f"this host's clock is {abs(ahead):.1f} s {which} the store's: delayed and scheduled jobs start so much "
            "too early or too late, and what people are shown as ages is wrong",
            "let both follow NTP (chrony, systemd-timesyncd)",
        )


def _difference(patient: Patient) -> tuple[float, float]:
    """How far this host is ahead, and by how much that may be wrong: the store says when a claim of ours was."""
    key, name = f"taskguard:doctor:{uuid4().hex}", uuid4().hex
    before = time.time()
    lease = patient.store.claim(Claim(key, name, name, lease=10, keep_for=1))
    after = time.time()
    entry = patient.store.get(key)
    if isinstance(lease, Lease):
        patient.store.release(lease, Ending(keep_for=1))
    if entry is None:
        return 0.0, 0.0
    return (before + after) / 2 - entry.since, (after - before) / 2


CHECKS = (agrees,)
