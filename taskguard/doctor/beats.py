"""Whether scheduled jobs are guarded."""

from __future__ import annotations

from collections.abc import Iterator

from taskguard.doctor.finding import Finding, Patient


def are_guarded(patient: Patient) -> Iterator[Finding]:
    """Two beats of Celery's own each publish every slot."""
    conf = patient.app.conf
    scheduler = str(conf.beat_scheduler)
    is_own = scheduler.startswith("celery.beat:")
    if "taskguard" in scheduler or (is_own and not conf.beat_schedule):
        return
    yield Finding(
        "TG208",
        "warning",
        "beat_scheduler",
        f"scheduled jobs are published by {scheduler}: a second beat publishes each of them again, and a beat that "
        "restarts may publish one twice or leave one out",
        'set beat_scheduler = "taskguard.celery.beat:GuardedScheduler"; then any number of beats can run',
    )


CHECKS = (are_guarded,)
