"""Slots over years, compared with what other libraries say; and the stated rule where those are wrong."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice, pairwise
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from croniter import croniter
from dateutil import tz
from hypothesis import given, settings
from hypothesis import strategies as st

from taskguard.errors import ConfigurationError
from taskguard.schedule.boundaries import MICROS, Clocked, Interval, Schedule, between, micros, moment_of
from taskguard.schedule.cron import Cron
from taskguard.schedule.solar import Solar

UTC = timezone.utc
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "Asia/Kolkata",
    "America/Havana",  # at midnight
    "Africa/Casablanca",
    "Pacific/Apia",  # had no 30 December 2011
    "America/Sao_Paulo",
    "America/Santiago",  # at midnight, in the south
    "America/St_Johns",  # at a minute past midnight, and half an hour off
    "Pacific/Chatham",  # three quarters of an hour off
    "Asia/Kathmandu",
    "Europe/Dublin",  # whose winter is the other time
    "Antarctica/Troll",  # by two hours
    "Asia/Gaza",
]
ZONES_OF_DATEUTIL = [zone for zone in ZONES if zone != "Europe/Dublin"]
"""It takes Dublin's clocks to change an hour later than they do: 02:00 in October would come twice."""
LAST_OF_DATEUTIL = datetime(2037, 1, 1, tzinfo=UTC)
"""It reads the half of a zone's file that ends with the 32 bits of 2038, and knows no summer after that."""
MANY = settings(max_examples=40, deadline=None)

minutes = st.sampled_from(["*", "0", "30", "*/15", "5,35", "17", "0-10/5", "59"])
hours = st.sampled_from(["*", "0", "2", "3", "2,3", "*/6", "1-4", "23", "9-17/4"])
fixed_hours = hours.filter(lambda text: text != "*")
days = st.sampled_from(["*", "1", "13", "31", "29", "*/10", "28-31"])
months = st.sampled_from(["*", "3,10", "*/5", "1-3"])
weekdays = st.sampled_from(["*", "0", "5", "1-5", "6", "7", "mon,wed"])
moments = st.integers(2005 * 365, 2036 * 365).map(lambda day: datetime(1, 1, 1, tzinfo=UTC) + timedelta(days=day))
near_changes = st.tuples(
    st.integers(2006, 2035), st.sampled_from([(3, 8), (3, 25), (4, 1), (10, 1), (10, 25), (11, 1)]), st.integers(0, 6)
).map(lambda when: datetime(when[0], *when[1], tzinfo=UTC) + timedelta(days=when[2]))
days_to_start = st.one_of(near_changes, moments.map(lambda moment: moment + timedelta(days=480)))
times = st.tuples(days_to_start, st.integers(0, 86399)).map(lambda pair: pair[0] + timedelta(seconds=pair[1]))
expressions = st.tuples(minutes, hours, days, months, weekdays).map(" ".join)


def first(schedule: Schedule, start: datetime, number: int = 5) -> list[datetime]:
    found, at = [], micros(start)
    for _ in range(number):
        following = schedule.after(at)
        if following is None:
            break
        at = following
        found.append(moment_of(at))
    return found


# -- references ----------------------------------------------------------------------------------------------------


@MANY
@given(expressions, times)
def test_the_dialect_of_rq_is_that_of_croniter(expression: str, start: datetime):
    reference = croniter(expression, start)
    expected = [reference.get_next(datetime) for _ in range(5)]

    assert first(Cron.parse(expression), start) == expected


@MANY
@given(minutes, hours, days, months, weekdays, times)
def test_the_dialect_of_celery_is_that_of_its_crontab(m: str, h: str, d: str, mo: str, w: str, start: datetime):
    now = start
    app = SimpleNamespace(timezone=UTC, conf=SimpleNamespace(enable_utc=True), now=lambda: now)
    theirs = crontab(
        minute=m,
        hour=h,
        day_of_month=d,
        month_of_year=mo,
        day_of_week="0" if w == "7" else w,
        nowfun=lambda: now,
        app=app,
    )
    ours = Cron.parse(f"{m} {h} {d} {mo} {w}", join="and")
    expected = []
    try:
        for _ in range(3):
            now = now + theirs.remaining_delta(now, tz=UTC)[1]
            expected.append(now)
    except RuntimeError:
        return  # it looks 2000 days ahead at most

    assert first(ours, start, 3) == expected


@MANY
@given(minutes, fixed_hours, days, months, weekdays, st.sampled_from(ZONES_OF_DATEUTIL), times)
def test_named_hours_are_local_times_as_dateutil_resolves_them(m, h, d, mo, w, zone, start):
    """Each local time that is named once: the first of two, and of none the one as long after the change."""
    cron = Cron.parse(f"{m} {h} {d} {mo} {w}", zone=ZoneInfo(zone))
    place = tz.gettz(zone)
    walls = islice(
        croniter(f"{m} {h} {d} {mo} {w}", start.replace(tzinfo=None) - timedelta(days=3)).all_next(datetime), 120
    )
    named = {tz.resolve_imaginary(wall.replace(tzinfo=place)).astimezone(UTC) for wall in walls}
    horizon = min(max(named) - timedelta(days=2), LAST_OF_DATEUTIL)
    expected = sorted(at for at in named if start < at <= horizon)[:20]

    assert first(cron, start, len(expected)) == expected


def test_named_hours_in_dublin():
    """On 25 March 2007 01:00 was followed by 02:00, and on 28 October 2007 the hour from 01:00 came twice."""
    zone = ZoneInfo("Europe/Dublin")
    for hour, minute, month, day, at in [
        (1, 30, 3, 25, datetime(2007, 3, 25, 1, 30, tzinfo=UTC)),
        (2, 0, 3, 25, datetime(2007, 3, 25, 1, 0, tzinfo=UTC)),
        (1, 30, 10, 28, datetime(2007, 10, 28, 0, 30, tzinfo=UTC)),
        (2, 0, 10, 28, datetime(2007, 10, 28, 2, 0, tzinfo=UTC)),
    ]:
        cron = Cron.parse(f"{minute} {hour} {day} {month} *", zone=zone)
        assert first(cron, datetime(2007, 1, 1, tzinfo=UTC), 1) == [at]


@MANY
@given(minutes, st.sampled_from(ZONES), times)
def test_every_hour_follows_elapsed_time(m: str, zone: str, start: datetime):
    cron = Cron.parse(f"{m} * * * *", zone=ZoneInfo(zone))
    place = tz.gettz(zone)
    wanted = {Cron.parse(f"{m} 0 * * *").minutes}.pop()
    whole = start.replace(second=0)
    every = (whole + timedelta(minutes=number) for number in range(1, 60 * 26))
    expected = [at for at in every if at.astimezone(place).minute in wanted]

    assert first(cron, start, len(expected)) == expected


@MANY
@given(expressions, st.sampled_from(["and", "or"]), st.sampled_from(ZONES), times)
def test_backwards_is_the_same_way(expression: str, join, zone: str, start: datetime):
    cron = Cron.parse(expression, join=join, zone=ZoneInfo(zone))
    ahead = [micros(at) for at in first(cron, start, 6)]

    assert all(cron.until(later) == later and cron.until(later - 1) == earlier for earlier, later in pairwise(ahead))
    assert ahead == sorted(set(ahead))


@MANY
@given(st.integers(1, 10**6).map(lambda tenths: tenths / 10), times, times)
def test_an_interval_is_a_grid_that_does_not_depend_on_who_asks_when(seconds: float, anchor: datetime, at: datetime):
    grid = Interval(seconds, anchor)
    step = round(seconds * MICROS)
    last, following = grid.until(micros(at)), grid.after(micros(at))

    assert last is not None and following == last + step
    assert last <= micros(at) < following
    assert (last - micros(anchor)) % step == 0
    assert grid.after(last - 1) == last


# -- the days the clocks change ------------------------------------------------------------------------------------

BERLIN = ZoneInfo("Europe/Berlin")


def local(cron: Cron, day: str) -> list[str]:
    """The boundaries of one local day."""
    start = datetime.fromisoformat(day).replace(tzinfo=BERLIN)
    until = (start + timedelta(days=1)).astimezone(UTC)
    found = between(cron, micros(start.astimezone(UTC)) - 1, micros(until) - 1)
    return [f"{moment_of(at).astimezone(BERLIN):%H:%M%z}" for at in found]


def test_a_time_that_the_clock_skips_is_an_hour_later():
    assert local(Cron.parse("30 2 * * *", zone=BERLIN), "2026-03-29") == ["03:30+0200"]


def test_a_skipped_time_and_the_one_it_falls_on_are_one_slot():
    assert local(Cron.parse("30 2,3 * * *", zone=BERLIN), "2026-03-29") == ["03:30+0200"]


def test_a_time_that_comes_twice_is_the_first():
    assert local(Cron.parse("30 2 * * *", zone=BERLIN), "2026-10-25") == ["02:30+0200"]


def test_every_hour_fires_in_both_passes_of_the_repeated_hour():
    found = local(Cron.parse("30 * * * *", zone=BERLIN), "2026-10-25")

    assert len(found) == 25
    assert found[1:4] == ["01:30+0200", "02:30+0200", "02:30+0100"]


def test_every_hour_has_nothing_to_make_up_for_in_spring():
    found = local(Cron.parse("30 * * * *", zone=BERLIN), "2026-03-29")

    assert len(found) == 23
    assert found[1:3] == ["01:30+0100", "03:30+0200"]


def test_a_date_that_a_place_never_had_fires_once():
    apia = Cron.parse("0 10 * * *", zone=ZoneInfo("Pacific/Apia"))
    start = datetime(2011, 12, 29, 0, tzinfo=ZoneInfo("Pacific/Apia")).astimezone(UTC)

    assert [f"{at.astimezone(apia.zone):%d %H:%M}" for at in first(apia, start, 3)] == [
        "29 10:00",
        "31 10:00",
        "01 10:00",
    ]


# -- the rest ------------------------------------------------------------------------------------------------------


def test_the_next_leap_day_on_a_monday_is_found_at_once():
    leap = Cron.parse("0 0 29 2 1", join="and")

    assert first(leap, datetime(2026, 1, 1, tzinfo=UTC), 1) == [datetime(2044, 2, 29, tzinfo=UTC)]


def test_a_date_that_never_comes_has_no_slots():
    never = Cron.parse("0 0 31 2 *")

    assert never.after(micros(datetime(2026, 1, 1, tzinfo=UTC))) is None
    assert never.until(micros(datetime(2026, 1, 1, tzinfo=UTC))) is None


def test_seven_days_from_a_monday_morning():
    weekly = Interval(7 * 86400, datetime(2026, 1, 5, 6, tzinfo=UTC))

    assert first(weekly, datetime(2026, 11, 16, tzinfo=UTC), 2) == [
        datetime(2026, 11, 16, 6, tzinfo=UTC),
        datetime(2026, 11, 23, 6, tzinfo=UTC),
    ]


def test_a_clocked_schedule_has_one_slot():
    at = datetime(2026, 11, 16, 6, tzinfo=UTC)

    assert first(Clocked(at), at - timedelta(days=9)) == [at]
    assert first(Clocked(at), at) == []
    assert Clocked(at).until(micros(at) - 1) is None


def test_the_sun_rises_at_the_same_second_whoever_asks():
    def roughly(start: datetime) -> datetime | None:  # some milliseconds off, as an iteration is
        sunrise = start.replace(hour=6, minute=14, second=33, microsecond=start.hour * 1000)
        return sunrise if sunrise > start else sunrise + timedelta(days=1)

    sun = Solar("sunrise", 52.5, 13.4, roughly)
    asked = {first(sun, datetime(2026, 5, 1, 7, number, tzinfo=UTC), 1)[0] for number in range(60)}

    assert asked == {datetime(2026, 5, 2, 6, 14, 33, tzinfo=UTC)}


def test_a_sunrise_that_comes_to_be_before_midnight_is_not_left_out():
    def earlier_each_day(start: datetime) -> datetime:
        number = 0
        while (found := datetime(2026, 3, 1, 0, 3, tzinfo=UTC) + number * timedelta(hours=23, minutes=59)) <= start:
            number += 1
        return found

    sun = Solar("sunrise", 23.8, 90.4, earlier_each_day)
    rises = first(sun, datetime(2026, 3, 1, tzinfo=UTC), 10)

    assert {later - earlier for earlier, later in pairwise(rises)} == {timedelta(hours=23, minutes=59)}
    assert [moment_of(sun.until(micros(at)) or 0) for at in rises] == rises


def test_the_days_of_a_polar_night_are_asked_about_once():
    asked: list[datetime] = []

    def in_march(start: datetime) -> datetime | None:
        asked.append(start)
        return start + timedelta(hours=10) if (start.month, start.day, start.hour) == (3, 5, 23) else None

    sun = Solar("sunrise", 85, 20, in_march)
    for _ in range(3):
        assert first(sun, datetime(2026, 11, 16, tzinfo=UTC), 1) == [datetime(2027, 3, 6, 9, tzinfo=UTC)]

    assert len(asked) < 130


@pytest.mark.parametrize(
    "expression", ["* * * *", "60 * * * *", "* 24 * * *", "a * * * *", "*/0 * * * *", "5-1 * * * *"]
)
def test_an_expression_that_is_none_is_refused(expression: str):
    with pytest.raises(ConfigurationError):
        Cron.parse(expression)


def test_equal_schedules_have_equal_texts():
    assert Cron.parse("0,30 * * * *").spec == Cron.parse("*/30 * * * 0-6").spec
    assert Cron.parse("0 0 * * *").spec != Cron.parse("0 0 * * *", zone=BERLIN).spec
    assert Interval(60).spec == Interval(60, datetime(2026, 1, 1, tzinfo=UTC)).spec
