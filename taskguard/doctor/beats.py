"""Checks that scheduled jobs are guarded."""

from __future__ import annotations

from collections.abc import Iterator

from celery.utils.imports import load_extension_class_names, symbol_by_name

from taskguard.celery.beat import SlotScheduler
from taskguard.doctor.finding import Finding, Patient
from taskguard.schedule.entry import PREFIX

_OURS = {
    # module of a scheduler: the guarded scheduler that replaces it
    "celery.beat": ("GuardedScheduler", "taskguard"),
    "django_celery_beat.schedulers": ("GuardedDatabaseScheduler", "taskguard_django"),
    "redbeat": ("GuardedRedBeatScheduler", "taskguard_redbeat"),
    "redbeat.schedulers": ("GuardedRedBeatScheduler", "taskguard_redbeat"),
}


def are_guarded(patient: Patient) -> Iterator[Finding]:
    """With Celery's own beat, two beats both publish every slot."""
    conf, named = patient.app.conf, dict(load_extension_class_names("celery.beat_schedulers"))
    scheduler = named.get(conf.beat_scheduler, str(conf.beat_scheduler))
    module = scheduler.replace(":", ".").rpartition(".")[0]
    has_none = module == "celery.beat" and not conf.beat_schedule
    if has_none or _is_guarded(scheduler) or _has_run(patient):
        return
    name, short = _OURS.get(module, ("", ""))
    yield Finding(
        "TG208",
        "warning",
        "beat_scheduler",
        f"{scheduler} publishes scheduled jobs, and the store has no trace of a guarded beat: a second beat, or a beat "
        "that restarts, may publish a run twice or miss one",
        f'set beat_scheduler = "taskguard.celery.beat:{name}", or start each beat with -S {short}; then you can '
        "run any number of beats"
        if name
        else "set beat_scheduler to the class that taskguard.celery.beat.guarded makes from it",
    )


def _is_guarded(scheduler: str) -> bool:
    try:
        return issubclass(symbol_by_name(scheduler), SlotScheduler)
    except Exception:  # its package is not installed, or needs a configured Django
        return "taskguard" in scheduler


def _has_run(patient: Patient) -> bool:
    """Whether a guarded beat has run: no setting shows `celery beat -S`, but the store has what such a beat wrote."""
    return any(entry.key.endswith(":known") for entry in patient.store.scan(PREFIX))


CHECKS = (are_guarded,)
