"""Whether scheduled jobs are guarded."""

from __future__ import annotations

from collections.abc import Iterator

from celery.utils.imports import load_extension_class_names, symbol_by_name

from taskguard.celery.beat import SlotScheduler
from taskguard.doctor.finding import Finding, Patient
from taskguard.schedule.entry import PREFIX

_OURS = {
    # where a scheduler is from: the one of ours that takes its place
    "celery.beat": ("GuardedScheduler", "taskguard"),
    "django_celery_beat.schedulers": ("GuardedDatabaseScheduler", "taskguard_django"),
    "redbeat": ("GuardedRedBeatScheduler", "taskguard_redbeat"),
    "redbeat.schedulers": ("GuardedRedBeatScheduler", "taskguard_redbeat"),
}


def are_guarded(patient: Patient) -> Iterator[Finding]:
    """Two beats of Celery's own each publish every slot."""
    conf, named = patient.app.conf, dict(load_extension_class_names("celery.beat_schedulers"))
    scheduler = named.get(conf.beat_scheduler, str(conf.beat_scheduler))
    module = scheduler.replace(":", ".").rpartition(".")[0]
    has_none = module == "celery.beat" and not conf.beat_schedule
    if has_none or _is_guarded(scheduler) or _was_at_work(patient):
        return
    name, short = _OURS.get(module, ("", ""))
    yield Finding(
        "TG208",
        "warning",
        "beat_scheduler",
        f"scheduled jobs are published by {scheduler}, and nothing shows that a beat guards them: a second beat, or "
        "one that restarts, may publish a run twice or leave one out",
        f'set beat_scheduler = "taskguard.celery.beat:{name}", or start each beat with -S {short}; then any number of '
        "them can run"
        if name
        else "set beat_scheduler to what taskguard.celery.beat.guarded makes of that class",
    )


def _is_guarded(scheduler: str) -> bool:
    try:
        return issubclass(symbol_by_name(scheduler), SlotScheduler)
    except Exception:  # its package is not here, or needs a Django that is set up
        return "taskguard" in scheduler


def _was_at_work(patient: Patient) -> bool:
    """What `celery beat -S` is told is in no setting; what a guarded beat knows of its entries is in the store."""
    return any(entry.key.endswith(":known") for entry in patient.store.scan(PREFIX))


CHECKS = (are_guarded,)
