"""Finds what breaks locks in production, and says what to change: `examine(store)`, or with the app that uses it.

Each check is a function that is given a `Patient` and answers with findings; none of them changes anything but a key of
its own. `docs/doctor.md` has a section for each finding.
"""

from __future__ import annotations

from typing import Any

from taskguard.doctor.finding import IDS, Finding, Level, Patient
from taskguard.protocol.store import Store

__all__ = ["IDS", "Finding", "Level", "Patient", "examine"]


def examine(store: Store, app: Any = None) -> list[Finding]:
    """All findings about *store*, and about the Celery *app* whose store it is; errors first."""
    from taskguard.doctor import clock, observed, process, servers

    checks = [*process.CHECKS, *servers.CHECKS, *clock.CHECKS, *observed.CHECKS]
    if app is not None:
        from taskguard.doctor import beats, broker, celery  # which needs Celery

        checks += [*celery.CHECKS, *beats.CHECKS, *broker.CHECKS]
    patient = Patient(store, app)
    found = [finding for check in checks for finding in check(patient)]
    return sorted(found, key=lambda finding: (finding.level != "error", finding.id, finding.about))
