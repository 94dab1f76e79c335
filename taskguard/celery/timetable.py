"""Entries of Celery's schedulers as entries of the timetable: schedule, options, and all else that decides on slots."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from celery import schedules
from celery.utils.time import maybe_make_aware

from taskguard.errors import ConfigurationError
from taskguard.schedule.boundaries import EPOCH, Asked, Clocked, Interval, Schedule
from taskguard.schedule.cron import Cron
from taskguard.schedule.entry import ScheduledEntry, Timing
from taskguard.schedule.solar import Solar

OPTIONS = ("overlap", "catch_up", "catch_up_window", "anchor")
"""In an entry's `options`; or, with the prefix, in its `kwargs`, if options cannot be given (Django's admin)."""
PREFIX = "taskguard_"
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_COMPARABLE = (schedules.schedule, schedules.crontab, schedules.solar)


class Facts(NamedTuple):
    """All that the timetable needs of a scheduler's entry. Equal facts mean the same entry."""

    name: str
    task: str
    schedule: Any
    schedule_is: int
    said: tuple[Any, ...]
    one_off: bool
    enabled: bool
    start_time: datetime | None
    ends: datetime | None
    expires: Any
    countdown: Any


def facts_of(entry: Any) -> Facts:
    kwargs, options = entry.kwargs or {}, entry.options or {}
    model = getattr(entry, "model", None)  # django-celery-beat
    schedule = entry.schedule
    return Facts(
        name=entry.name,
        task=entry.task,
        schedule=schedule,
        # What equality means for other classes is unknown.
        schedule_is=0 if type(schedule) in _COMPARABLE else id(schedule),
        said=tuple(options.get(name, kwargs.get(PREFIX + name)) for name in OPTIONS),
        one_off=bool(getattr(model, "one_off", False)),
        enabled=bool(getattr(model or entry, "enabled", True)),
        start_time=getattr(model, "start_time", None),
        ends=getattr(model, "expires", None),
        expires=options.get("expires"),
        countdown=options.get("countdown"),
    )


def entry_of(found: Facts, default: Timing) -> ScheduledEntry:
    """The timetable's entry, for any scheduler."""
    said = dict(zip(OPTIONS, found.said, strict=True))
    return ScheduledEntry(
        name=found.name,
        identity=found.task,
        schedule=schedule_of(found.schedule, said["anchor"]),
        timing=Timing.of(said, default),
        one_off=found.one_off,
        enabled=found.enabled,
        starts_at=_aware(found.start_time),
        ends_at=_aware(found.ends),
        expires_after=_seconds(found.expires),
        begins_after=_seconds(found.countdown) or 0.0,
    )


def without_ours(found: dict[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """Options or kwargs without taskguard's own."""
    names = {prefix + name for name in OPTIONS}
    return {name: value for name, value in (found or {}).items() if name not in names}


def schedule_of(found: Any, anchor: Any = None) -> Schedule:
    if isinstance(found, schedules.crontab):
        parts = (found.minute, found.hour, found.day_of_month, found.month_of_year, found.day_of_week)
        zone = _zone(found.tz)
        make = _cron if isinstance(zone, Hashable) else _cron.__wrapped__  # dateutil's zones are not
        return make(*(frozenset(part) for part in parts), zone)
    if isinstance(found, schedules.solar):
        return _solar(found.event, found.lat, found.lon)
    if isinstance(found, schedules.schedule) and type(found).is_due is schedules.schedule.is_due:
        return Interval(found.run_every.total_seconds(), _moment(anchor) if anchor else EPOCH)
    if hasattr(found, "clocked_time"):
        return Clocked(maybe_make_aware(found.clocked_time))
    if hasattr(found, "rrule"):  # RedBeat's
        return Asked(f"rrule {found.rrule}", found.rrule.after, lambda at: found.rrule.before(at, inc=True))
    if not hasattr(found, "remaining_estimate"):
        raise ConfigurationError(f"{found!r} is not a schedule")
    return _asked(found)


@lru_cache(maxsize=1000)  # a Cron caches the minutes of the days it was last asked about
def _cron(minutes: Any, hours: Any, days: Any, months: Any, weekdays: Any, zone: tzinfo) -> Cron:
    return Cron(minutes, hours, days, months, weekdays, "and", zone)


def _zone(zone: tzinfo) -> tzinfo:
    name = getattr(zone, "zone", None)  # pytz: its zones have no offset until they are localized
    return ZoneInfo(name) if name and hasattr(zone, "localize") else zone


@lru_cache(maxsize=100)
def _solar(event: str, latitude: float, longitude: float) -> Solar:
    sun = schedules.solar(event, latitude, longitude)

    def next_event(start: datetime) -> datetime | None:
        options = {"use_center": True} if sun.use_center else {}
        try:
            found = getattr(sun.cal, sun.method)(sun.ephem.Sun(), start=start, **options)
        except sun.ephem.CircumpolarError:
            return None
        moment: datetime = found.datetime()
        return moment.replace(tzinfo=timezone.utc)

    return Solar(event, latitude, longitude, next_event)


def _asked(found: Any) -> Asked:
    """A user's own class: it only knows how long it is from now until the boundary after a moment."""

    def later_than(moment: datetime) -> datetime | None:
        remaining = found.remaining_estimate(moment)
        if remaining is None:
            return None
        at: datetime = maybe_make_aware(found.now()).astimezone(timezone.utc) + remaining
        whole = (at + timedelta(milliseconds=500)).replace(microsecond=0)
        return max(whole, moment.replace(microsecond=0) + _SECOND)

    def not_later_than(moment: datetime) -> datetime | None:
        for days in (1, 32, 370):
            last, at = None, later_than(moment - days * _DAY)
            while at is not None and at <= moment and at != last:
                last, at = at, later_than(at)
            if last is not None:
                return last
        return None

    return Asked(f"{type(found).__module__}.{type(found).__qualname__} {found!r}", later_than, not_later_than)


def _moment(anchor: Any) -> datetime:
    try:
        found = anchor if isinstance(anchor, datetime) else datetime.fromisoformat(str(anchor).replace("Z", "+00:00"))
    except ValueError:
        raise ConfigurationError(f"anchor={anchor!r} is not a moment; write 2026-01-05T06:00:00+00:00") from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _aware(moment: datetime | None) -> datetime | None:
    return None if moment is None else maybe_make_aware(moment)


def _seconds(expires: Any) -> float | None:
    """Seconds until a message expires, from now."""
    if isinstance(expires, datetime):
        left: timedelta = maybe_make_aware(expires) - datetime.now(timezone.utc)
        return max(1.0, left.total_seconds())
    return float(expires) if isinstance(expires, (int, float)) and expires > 0 else None
