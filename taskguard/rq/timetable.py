"""A cron job of RQ as an entry of the timetable that all schedulers share.

RQ names a cron job after its function, and several may share a name. So the identity of an entry is its function,
arguments, queue and schedule.
"""

from __future__ import annotations

import json
import pickle
import re
from datetime import datetime, timedelta
from hashlib import blake2b

from croniter import CroniterBadDateError, croniter
from rq.cron import CronJob

from taskguard.errors import ConfigurationError
from taskguard.schedule.boundaries import EPOCH, Asked, Interval, Schedule
from taskguard.schedule.entry import ScheduledEntry, Timing

OPTIONS = "taskguard"
"""The key in a cron job's meta that holds taskguard's options."""
_KNOWN = frozenset({"overlap", "catch_up", "catch_up_window", "anchor"})
_SECOND = timedelta(seconds=1)
_RANDOM = re.compile(r"(^|[\s,])r($|[\s,/(])", re.IGNORECASE)


def entry_of(job: CronJob, default: Timing) -> ScheduledEntry:
    """The entry of a cron job. Removes taskguard's options from the meta of its jobs."""
    meta = dict(job.job_options.get("meta") or {})
    options = meta.pop(OPTIONS, None) or {}
    unknown = set(options) - _KNOWN
    if unknown:
        raise ConfigurationError(
            f"{job.func_name}: there is no option {', '.join(sorted(unknown))}; write {', '.join(sorted(_KNOWN))}"
        )
    if OPTIONS in (job.job_options.get("meta") or {}):
        job.job_options = {name: value for name, value in job.job_options.items() if name != "meta"}
        if meta:
            job.job_options["meta"] = meta
    schedule = schedule_of(job, options.get("anchor"))
    return ScheduledEntry(
        name=getattr(job, "name", "") or job.func_name,  # RQ 2.8 has no names
        schedule=schedule,
        identity=f"rq {job.func_name} {_arguments(job)} {job.queue_name} {schedule.spec}",
        timing=Timing.of(options, default),
        expires_after=job.job_options.get("ttl"),
    )


def schedule_of(job: CronJob, anchor: datetime | None = None) -> Schedule:
    if job.cron is None:
        return Interval(float(job.interval or 0), anchor or EPOCH)
    if anchor is not None:
        raise ConfigurationError(
            f"{job.func_name}: anchor= needs interval=, but this job has cron={job.cron!r}; leave anchor= out"
        )
    return by_croniter(job.cron)


def by_croniter(expression: str) -> Schedule:
    """The boundaries that RQ itself would find, in UTC, since both use croniter."""
    if _RANDOM.search(expression):
        raise ConfigurationError(
            f"{expression!r} is random, and schedulers must agree on when it is due; write the time itself"
        )

    def later_than(moment: datetime) -> datetime | None:
        return _found(expression, moment.replace(microsecond=0), "get_next")

    def not_later_than(moment: datetime) -> datetime | None:
        return _found(expression, moment.replace(microsecond=0) + _SECOND, "get_prev")

    return Asked(f"croniter {' '.join(expression.split())}", later_than, not_later_than)


def _found(expression: str, moment: datetime, which: str) -> datetime | None:
    try:
        found: datetime = getattr(croniter(expression, moment), which)(datetime)
    except CroniterBadDateError:
        return None
    return found


def _arguments(job: CronJob) -> str:
    """A text that is the same in every process for the same arguments."""
    try:
        return json.dumps([job.args, job.kwargs], sort_keys=True)
    except (TypeError, ValueError):
        return blake2b(_pickled(job), digest_size=16, usedforsecurity=False).hexdigest()


def _pickled(job: CronJob) -> bytes:
    try:
        return pickle.dumps((job.args, sorted(job.kwargs.items())), protocol=4)
    except Exception as error:  # pickling may raise anything: the job could not be enqueued either
        raise ConfigurationError(f"{job.func_name}: its arguments cannot be pickled ({error})") from error
