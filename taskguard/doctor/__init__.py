"""Finds what breaks locks in production, and what to change: `examine(store)`, or `examine(store, app)`.

Each check is a function that takes a `Patient` and yields findings. A check writes no key except one of its own.
`docs/doctor.md` has a section for each finding.
"""

from __future__ import annotations

from typing import Any

from taskguard.doctor.finding import IDS, Finding, Level, Patient
from taskguard.protocol.store import Store

__all__ = ["IDS", "Finding", "Level", "Patient", "examine"]


def examine(store: Store, app: Any = None) -> list[Finding]:
    """All findings about *store*, and about the Celery *app* that uses it; errors first."""
    from taskguard.doctor import clock, observed, process, servers

    checks = [*process.CHECKS, *servers.CHECKS, *clock.CHECKS, *observed.CHECKS]
    if app is not None:
        from taskguard.doctor import beats, broker, celery  # they import Celery

        checks += [*celery.CHECKS, *beats.CHECKS, *broker.CHECKS]
    patient = Patient(store, app)
    found = [finding for check in checks for finding in check(patient)]
    return sorted(found, key=lambda finding: (finding.level != "error", finding.id, finding.about))
