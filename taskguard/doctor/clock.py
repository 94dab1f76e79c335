"""Checks that this host's clock agrees with the store's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

from taskguard.doctor.finding import Finding, Patient
from taskguard.protocol.store import Claim, Ending, Lease

MOST = 1.0
"""Seconds by which the clocks may differ, beyond the error of the measurement."""


def agrees(patient: Patient) -> Iterator[Finding]:
    """Leases expire by the store's clock alone; delays, waiting times and schedules follow the host's."""
    if patient.store.guarantees.clock != "the server's":
        return
    ahead, unsure = _difference(patient)
    if abs(ahead) - unsure > MOST:
        which = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            "TG105",
            "warning",
            repr(patient.store),
            f"this host's clock is {abs(ahead):.1f} s {which} the store's: delayed and scheduled jobs start too "
            "early or too late by that much, and the ages in the command line's output are wrong",
            "synchronize both by NTP (chrony, systemd-timesyncd)",
        )


def _difference(patient: Patient) -> tuple[float, float]:
    """How far this host's clock is ahead, and the error of that: the store returns its own time of a claim."""
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
