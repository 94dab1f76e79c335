"""Checks the settings of an app and its tasks."""

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
_REDELIVERING = ("redis", "rediss", "sentinel", "valkey", "valkeys", "sqs", "gcpubsub", "azureservicebus", "filesystem")
"""Transports that redeliver a message if nobody acknowledges it for some time."""
_POLLING = ("redis", "rediss", "sentinel", "valkey", "valkeys")
"""Transports that poll for such messages: kombu's Redis transport every 100 s by default."""
_RABBITMQ = ("amqp", "amqps", "pyamqp", "librabbitmq")
CONSUMER_TIMEOUT = 1800.0
"""Seconds that RabbitMQ waits for an acknowledgement by default."""
_HERE = ("localhost", "127.0.0.1", "::1")


def visibility(patient: Patient) -> Iterator[Finding]:
    """The guard recognises a message that the broker redelivers while its job runs, but each copy costs time."""
    if not _redelivers(patient):
        return
    timeout = visibility_timeout(patient.app)
    for task, longest, how in _longest_runs(patient):
        if longest > timeout:
            yield Finding(
                "TG201",
                "warning",
                task.name,
                f"it {how}, and the broker redelivers its message after {timeout:g} s: workers defer the copies until "
                "the job ends; without the guard two runs would overlap",
                f'set broker_transport_options = {{"visibility_timeout": {max(3600, int(longest * 2))}}}',
            )


def acknowledgement(patient: Patient) -> Iterator[Finding]:
    """If a consumer holds a message too long, RabbitMQ closes its channel and redelivers all its messages."""
    if transport_of(patient.app) not in _RABBITMQ:
        return
    for task, longest, how in _longest_runs(patient):
        if longest > CONSUMER_TIMEOUT and task.acks_late:
            yield Finding(
                "TG210",
                "warning",
                task.name,
                f"it {how}, and RabbitMQ waits {CONSUMER_TIMEOUT:g} s for an acknowledgement, unless its "
                "consumer_timeout is longer: then it closes the channel and redelivers every message of that worker",
                f"set consumer_timeout = {max(3600, int(longest * 2)) * 1000} (milliseconds) in rabbitmq.conf, or as a "
                "policy of the queue; then use --ignore TG210",
            )


def delivery(patient: Patient) -> Iterator[Finding]:
    """A job acknowledged before it runs is lost if its worker dies."""
    for task in patient.tasks:
        off = [name for name in ("acks_late", "reject_on_worker_lost") if not getattr(task, name, None)]
        if off:
            yield Finding(
                "TG202",
                "warning",
                task.name,
                f"{' and '.join(off)} off: if its worker is killed, the job is lost, and its key stays held until the "
                "lease expires",
                "leave them on: the guard makes redelivery safe. If the job must start at most once, write "
                "max_starts=1 instead",
            )
    if transport_of(patient.app) in _POLLING and not patient.guarding.settings.redeliver_orphans:
        yield Finding(
            "TG202",
            "warning",
            "taskguard_redeliver_orphans",
            f"it is off: the broker redelivers the job of a killed worker after {_redelivers_within(patient):g} s (the "
            "visibility timeout, and until kombu polls), though its key is free once the lease expires",
            "leave it on: another worker then runs the job again within lease + 10 s",
        )


def queueing(patient: Patient) -> Iterator[Finding]:
    """If a queued entry expires before its job starts, another call can claim the key, and both run."""
    queued_for = patient.guarding.settings.queued_for
    if _redelivers(patient) and queued_for < _redelivers_within(patient):
        yield Finding(
            "TG203",
            "error",
            "taskguard_queued_for",
            f"a queued entry expires after {queued_for:g} s, and if a worker dies before the job starts, the broker "
            f"redelivers its message after up to {_redelivers_within(patient):g} s: another call can claim the key in "
            "between, and both run",
            f"set taskguard_queued_for to {2 * visibility_timeout(patient.app):g} or more",
        )
    for task, wait in sorted(_longest_between(patient, "queued", _STARTS).items()):
        if wait > queued_for / 2:
            yield Finding(
                "TG203",
                "error" if wait > queued_for else "warning",
                task,
                f"a job recently waited {wait:.0f} s in the queue, on top of its countdown or eta, and its entry "
                f"expires after {queued_for:g} s of that: another call can then claim the key, and both run",
                f"set taskguard_queued_for to {4 * wait:.0f} or more, or start more workers",
            )


def delays(patient: Patient) -> Iterator[Finding]:
    """A worker holds a delayed message unacknowledged until it is due."""
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
                f"it was called with a countdown or eta of {delay:.0f} s, and the broker redelivers a message that "
                f"nobody acknowledges for {timeout:g} s: each time another worker gets a copy. The guard runs one of "
                "them; each of the others costs time",
                f'set broker_transport_options = {{"visibility_timeout": {int(delay * 2)}}}, or call the task later',
            )


def retention(patient: Patient) -> Iterator[Finding]:
    """The store must remember a job's end for as long as the broker can redeliver its message."""
    if not _redelivers(patient):
        return
    timeout, within = visibility_timeout(patient.app), _redelivers_within(patient)
    for task in patient.tasks:
        if task.taskguard.policy.keep < within:
            yield Finding(
                "TG204",
                "error",
                task.name,
                f"keep_for={task.taskguard.policy.keep:g}, and the broker can redeliver a message after {within:g} s "
                f"(visibility timeout {timeout:g} s, and until it polls): by then the store has forgotten that the "
                "job ended, and it runs again",
                f"write keep_for={2 * timeout:g} or more, or leave it out",
            )


def results(patient: Patient) -> Iterator[Finding]:
    """A caller with the holder's handle reads the result from the backend."""
    for task in patient.tasks:
        if isinstance(task.backend, DisabledBackend) and not task.ignore_result:
            yield Finding(
                "TG205",
                "warning",
                task.name,
                "it stores results, but the app has no result backend: a duplicate call cannot read the holder's "
                "result, and taskguard cannot replay a result over 64 KiB",
                "set result_backend, or ignore_result=True if nobody reads results",
            )


def combinations(patient: Patient) -> Iterator[Finding]:
    """Options that work alone but not together. (The decorator refuses such options of one task.)"""
    settings = patient.guarding.settings
    if settings.republish_after >= settings.queued_for:
        yield Finding(
            "TG206",
            "warning",
            "taskguard_republish_after",
            f"a call may republish a lost message after {settings.republish_after:g} s, but by then its entry has "
            f"expired (taskguard_queued_for={settings.queued_for:g}): nobody republishes it",
            "set taskguard_republish_after to less than taskguard_queued_for",
        )
    for task in patient.tasks:
        policy, limit = task.taskguard.policy, _time_limit(task)
        if policy.hold_at_most is not None and policy.hold_at_most < limit:
            yield Finding(
                "TG206",
                "error",
                task.name,
                f"it may run for {limit:g} s (time_limit) but holds its key for at most {policy.hold_at_most:g} s: "
                "after that another run can overlap it",
                f"write hold_at_most={limit:g} or more, or time_limit={policy.hold_at_most:g} or less",
            )
        if settings.on_store_error == "run_unguarded" and policy.on_done != "rerun":
            yield Finding(
                "TG206",
                "warning",
                task.name,
                f'with on_done="{policy.on_done}" finished work does not run again, but with '
                'taskguard_on_store_error="run_unguarded" it does while the store is unavailable',
                'leave taskguard_on_store_error at "retry"',
            )


def own_file(patient: Patient) -> Iterator[Finding]:
    """A file guards the processes of one host; a broker on another host serves other hosts too."""
    host = urlsplit(broker_of(patient.app)).hostname
    if isinstance(patient.store, SQLiteStore) and host and host not in _HERE:
        yield Finding(
            "TG108",
            "warning",
            repr(patient.store),
            f"the broker is at {host}, so workers and callers on other hosts can use it, and each host has a file of "
            "its own: processes on different hosts do not exclude each other",
            'set a store that all hosts can reach: taskguard_store = "redis://…" or "postgresql://…"; if everything '
            "runs on this host, use --ignore TG108",
        )


def patterns(patient: Patient) -> Iterator[Finding]:
    """A pattern of `taskguard_tasks` that matches no task is probably misspelled."""
    names = [task.name for task in patient.tasks]
    for pattern in patient.guarding.settings.tasks or {}:
        if not any(patient.guarding.fits(pattern, name) for name in names):
            yield Finding(
                "TG207",
                "warning",
                f"taskguard_tasks[{pattern!r}]",
                "no task of this app has a name that matches, so the pattern guards nothing",
                "correct the pattern, or import the modules of those tasks (include=, autodiscover_tasks)",
            )


CHECKS = (visibility, acknowledgement, own_file, delivery, queueing, delays, retention, results, combinations, patterns)


def _redelivers(patient: Patient) -> bool:
    return transport_of(patient.app) in _REDELIVERING


def _redelivers_within(patient: Patient) -> float:
    """Seconds within which the broker redelivers a message that nobody acknowledges."""
    options = patient.app.conf.broker_transport_options or {}
    polls = [float(options.get(name) or 10) for name in ("unacked_restore_interval", "unacked_restore_throttle")]
    return visibility_timeout(patient.app) + (prod(polls) if transport_of(patient.app) in _POLLING else 0.0)


def _longest_runs(patient: Patient) -> Iterator[tuple[Any, float, str]]:
    """For each task, how long it may run or recently ran, and which of the two it is."""
    seen = _longest_between(patient, "running", {"completed", "failed", "released", "requeued"})
    for task in patient.tasks:
        limit, recent = _time_limit(task), seen.get(task.taskguard.keys.space, 0.0)
        yield (
            (task, limit, f"may run for {limit:g} s (time_limit)")
            if limit >= recent
            else (task, recent, f"recently ran for {recent:.0f} s")
        )


def _time_limit(task: Any) -> float:
    return float(task.time_limit or task.app.conf.task_time_limit or 0.0)


def _longest_between(patient: Patient, state: str, ends: Collection[str]) -> dict[str, float]:
    """For each key space, the longest time that a job was in *state* before an event of *ends*.

    For a queued job the time counts from when it is due: its entry lasts longer by its countdown or eta.
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
