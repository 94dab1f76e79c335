"""What an app and its tasks are set to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from math import prod
from typing import Any
from urllib.parse import urlsplit

from celery.backends.base import DisabledBackend

from taskguard.celery.settings import broker_of, transport_of, visibility_timeout
from taskguard.doctor.finding import Finding, Patient
from taskguard.keys.maker import space_of
from taskguard.stores.sqlite import SQLiteStore

_STARTS = ("claimed", "took_over")
_FORGETFUL = ("redis", "rediss", "sentinel", "valkey", "valkeys", "sqs", "gcpubsub", "azureservicebus", "filesystem")
"""Transports that deliver a message again when it was not acknowledged for some time."""
_LOOKS = ("redis", "rediss", "sentinel", "valkey", "valkeys")
"""Those that look for such messages now and then: kombu's Redis transport every 100 s, unless it is told otherwise."""
_RABBITMQ = ("amqp", "amqps", "pyamqp", "librabbitmq")
CONSUMER_TIMEOUT = 1800.0
"""Seconds for which RabbitMQ waits by default."""
_HERE = ("localhost", "127.0.0.1", "::1")


def visibility(patient: Patient) -> Iterator[Finding]:
    """A message that is delivered again while its job runs is recognised, and costs all the same."""
    if not _redelivers(patient):
        return
    timeout = visibility_timeout(patient.app)
    for task, longest, how in _longest_runs(patient):
        if longest > timeout:
            yield Finding(
                "TG201",
                "warning",
                task.name,
                f"it {how}, and the broker delivers its message again after {timeout:g} s: copies are put back until "
                "it ends, and without the guard it would run beside itself",
                f'set broker_transport_options = {{"visibility_timeout": {max(3600, int(longest * 2))}}}',
            )


def acknowledgement(patient: Patient) -> Iterator[Finding]:
    """RabbitMQ closes the channel of a consumer that keeps a message for too long, and delivers all of its again."""
    if transport_of(patient.app) not in _RABBITMQ:
        return
    for task, longest, how in _longest_runs(patient):
        if longest > CONSUMER_TIMEOUT and task.acks_late:
            yield Finding(
                "TG210",
                "warning",
                task.name,
                f"it {how}, and RabbitMQ waits {CONSUMER_TIMEOUT:g} s for an acknowledgement unless its "
                "consumer_timeout says otherwise: then it closes the channel, and every message of that worker is "
                "delivered again",
                f"set consumer_timeout = {max(3600, int(longest * 2)) * 1000} (milliseconds) in rabbitmq.conf, or as a "
                "policy of the queue; then leave this finding out with --ignore TG210",
            )


def delivery(patient: Patient) -> Iterator[Finding]:
    """A guarded job that is acknowledged before it runs is gone with its worker."""
    for task in patient.tasks:
        off = [name for name in ("acks_late", "reject_on_worker_lost") if not getattr(task, name, None)]
        if off:
            yield Finding(
                "TG202",
                "warning",
                task.name,
                f"{' and '.join(off)} off: if its worker is killed, the job is lost, and its key is held until the "
                "lease runs out",
                "leave them on: the guard makes a second delivery harmless. If it must start once at most, say "
                "max_starts=1 instead",
            )
    if transport_of(patient.app) in _LOOKS and not patient.guarding.settings.redeliver_orphans:
        yield Finding(
            "TG202",
            "warning",
            "taskguard_redeliver_orphans",
            f"it is off: the job of a killed worker comes back after {_comes_back_within(patient):g} s (the visibility "
            "timeout, and until kombu looks), though its key is free when the lease is over",
            "leave it on: another worker then runs the job again within lease + 10 s",
        )


def queueing(patient: Patient) -> Iterator[Finding]:
    """A queued entry that ends before its job starts lets another job in beside it."""
    queued_for = patient.guarding.settings.queued_for
    if _redelivers(patient) and queued_for < _comes_back_within(patient):
        yield Finding(
            "TG203",
            "error",
            "taskguard_queued_for",
            f"a queued entry is over after {queued_for:g} s, and a message whose worker died before it began can come "
            f"back after {_comes_back_within(patient):g} s: another call can get in between, and both run",
            f"set taskguard_queued_for to {2 * visibility_timeout(patient.app):g} or more",
        )
    for task, wait in sorted(_longest_between(patient, "queued", _STARTS).items()):
        if wait > queued_for / 2:
            yield Finding(
                "TG203",
                "error" if wait > queued_for else "warning",
                task,
                f"a job waited {wait:.0f} s in the queue lately, on top of its countdown or eta, and its entry is over "
                f"after {queued_for:g} s of that: another call can then get in beside it, and both run",
                f"set taskguard_queued_for to {4 * wait:.0f} or more, or start more workers",
            )


def delays(patient: Patient) -> Iterator[Finding]:
    """A worker keeps a delayed message unacknowledged until its time has come."""
    if not _redelivers(patient):
        return
    timeout, queued_for = visibility_timeout(patient.app), patient.guarding.settings.queued_for
    longest: dict[str, float] = defaultdict(float)
    for decision in patient.decisions:
        if decision.event.state == "queued" and decision.event.kind in _STARTS:
            space = space_of(decision.event.key)
            longest[space] = max(longest[space], decision.event.lasts - queued_for)
    for task, delay in sorted(longest.items()):
        if delay > timeout:
            yield Finding(
                "TG209",
                "warning",
                task,
                f"it was called with a countdown or eta of {delay:.0f} s, and the broker delivers a message again that "
                f"is not acknowledged for {timeout:g} s: each time another worker gets a copy. The guard runs one of "
                "them, and the others cost",
                f'set broker_transport_options = {{"visibility_timeout": {int(delay * 2)}}}, or call it later',
            )


def retention(patient: Patient) -> Iterator[Finding]:
    """An end must be remembered for as long as its message can come back."""
    if not _redelivers(patient):
        return
    timeout, within = visibility_timeout(patient.app), _comes_back_within(patient)
    for task in patient.tasks:
        if task.taskguard.policy.keep < within:
            yield Finding(
                "TG204",
                "error",
                task.name,
                f"keep_for={task.taskguard.policy.keep:g}, and a message can come back after {within:g} s (visibility "
                f"timeout {timeout:g} s, and until the next look for such): by then its end is forgotten, and it runs "
                "again",
                f"write keep_for={2 * timeout:g} or more, or leave it out",
            )


def results(patient: Patient) -> Iterator[Finding]:
    """Whoever is answered with a twin's handle reads its result from the backend."""
    for task in patient.tasks:
        if isinstance(task.backend, DisabledBackend) and not task.ignore_result:
            yield Finding(
                "TG205",
                "warning",
                task.name,
                "its results are wanted and the app has no result backend: a caller that is answered with another "
                "job's handle cannot read its result, and one over 64 KiB cannot be replayed",
                "set result_backend, or ignore_result=True if nobody reads results",
            )


def combinations(patient: Patient) -> Iterator[Finding]:
    """Options that are sound each by itself. (Those of one task alone are refused when it is made.)"""
    settings = patient.guarding.settings
    if settings.republish_after >= settings.queued_for:
        yield Finding(
            "TG206",
            "warning",
            "taskguard_republish_after",
            f"a lost message is published again after {settings.republish_after:g} s, and by then its entry is over "
            f"(taskguard_queued_for={settings.queued_for:g}): it never is",
            "set taskguard_republish_after to less than taskguard_queued_for",
        )
    for task in patient.tasks:
        policy, limit = task.taskguard.policy, _time_limit(task)
        if policy.hold_at_most is not None and policy.hold_at_most < limit:
            yield Finding(
                "TG206",
                "error",
                task.name,
                f"it may run for {limit:g} s (time_limit) and holds its key for {policy.hold_at_most:g} s at most: "
                "after that another one runs beside it",
                f"write hold_at_most={limit:g} or more, or time_limit={policy.hold_at_most:g} or less",
            )
        if settings.on_store_error == "run_unguarded" and policy.on_done != "rerun":
            yield Finding(
                "TG206",
                "warning",
                task.name,
                f'on_done="{policy.on_done}" says that finished work is not done again, and '
                'taskguard_on_store_error="run_unguarded" does it again whenever the store is away',
                'leave taskguard_on_store_error at "retry"',
            )


def own_file(patient: Patient) -> Iterator[Finding]:
    """A file guards the processes of its host; a broker that is elsewhere serves others as well."""
    host = urlsplit(broker_of(patient.app)).hostname
    if isinstance(patient.store, SQLiteStore) and host and host not in _HERE:
        yield Finding(
            "TG108",
            "warning",
            repr(patient.store),
            f"the broker is at {host}, where workers and callers of other hosts reach it as well, and each host has a "
            "file of its own: nothing is guarded between them",
            'name a store that all hosts can reach: taskguard_store = "redis://…" or "postgresql://…"; or leave this '
            "finding out with --ignore TG108 if all of it runs here",
        )


def patterns(patient: Patient) -> Iterator[Finding]:
    """A pattern of `taskguard_tasks` that fits nothing is likely a spelling mistake."""
    names = [task.name for task in patient.tasks]
    for pattern in patient.guarding.settings.tasks or {}:
        if not any(patient.guarding.fits(pattern, name) for name in names):
            yield Finding(
                "TG207",
                "warning",
                f"taskguard_tasks[{pattern!r}]",
                "no task of this app has such a name, so nothing is guarded by it",
                "correct the pattern, or import the modules of those tasks (include=, autodiscover_tasks)",
            )


CHECKS = (visibility, acknowledgement, own_file, delivery, queueing, delays, retention, results, combinations, patterns)


def _redelivers(patient: Patient) -> bool:
    return transport_of(patient.app) in _FORGETFUL


def _comes_back_within(patient: Patient) -> float:
    """Seconds after which a message that nobody acknowledged is there again, at the latest."""
    options = patient.app.conf.broker_transport_options or {}
    looks = [float(options.get(name) or 10) for name in ("unacked_restore_interval", "unacked_restore_throttle")]
    return visibility_timeout(patient.app) + (prod(looks) if transport_of(patient.app) in _LOOKS else 0.0)


def _longest_runs(patient: Patient) -> Iterator[tuple[Any, float, str]]:
    """Of each task, how long it may run or did lately, and how that is known."""
    seen = _longest_between(patient, "running", {"completed", "failed", "released", "requeued"})
    for task in patient.tasks:
        limit, lately = _time_limit(task), seen.get(task.taskguard.keys.space, 0.0)
        yield (
            (task, limit, f"may run for {limit:g} s (time_limit)")
            if limit >= lately
            else (task, lately, f"ran for {lately:.0f} s lately")
        )


def _time_limit(task: Any) -> float:
    return float(task.time_limit or task.app.conf.task_time_limit or 0.0)


def _longest_between(patient: Patient, state: str, ends: Collection[str]) -> dict[str, float]:
    """The longest that a job of each key space was known to be in *state* before an event of *ends*.

    Of a queued one without its own delay, for which its entry lasts longer.
    """
    queued_for = patient.guarding.settings.queued_for
    begun: dict[tuple[str, str], float] = {}
    longest: dict[str, float] = defaultdict(float)
    for decision in patient.decisions:
        event = decision.event
        job = (event.key, event.owner)
        if event.kind in ends and job in begun:
            space = space_of(event.key)
            longest[space] = max(longest[space], decision.at - begun.pop(job))
        if event.kind in _STARTS and event.state == state:
            delay = max(0.0, event.lasts - queued_for) if state == "queued" else 0.0
            begun[job] = decision.at + delay
    return longest
