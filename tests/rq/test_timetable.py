"""A line of RQ's cron as an entry: which slots it has, and what it is told apart by."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st
from rq.cron import CronJob

from taskguard import ConfigurationError
from taskguard.rq.timetable import by_croniter, entry_of
from taskguard.schedule.boundaries import between, micros, moment_of
from taskguard.schedule.entry import ScheduledEntry, Timing
from tests.rq import timed

UTC = timezone.utc
MONDAY = datetime(2026, 11, 16, 6, tzinfo=UTC)


def entry(*args: Any, meta: Any = None, **options: Any) -> ScheduledEntry:
    options = {"interval": 60} | options if "cron" not in options else options
    return entry_of(CronJob("default", func=timed.plain, args=args, meta=meta, **options), Timing())


@pytest.mark.parametrize(
    "expression",
    [
        "*/5 * * * *",
        "0 0 13 * 5",  # the 13th, or a Friday
        "0 0 * * 5#2",
        "0 0 L * *",
        "0 0 * * fri-mon",
        "*/7 1-1 */16 * 1",  # what only croniter reads so
        "* * * * * */10",  # the sixth field is seconds
        "@weekly",
    ],
)
@settings(max_examples=20, deadline=None)
@given(st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC)))
def test_a_cron_expression_means_what_it_means_to_rq(expression: str, start: datetime):
    theirs = croniter(expression, start)
    expected = [theirs.get_next(datetime) for _ in range(4)]
    schedule = by_croniter(expression)
    found = [moment_of(at) for at in islice(between(schedule, micros(start), 10**17), 4)]

    assert found == expected
    assert schedule.until(micros(expected[2])) == micros(expected[2])
    assert schedule.until(micros(expected[2]) - 1) == micros(expected[1])


def test_an_expression_that_never_comes_has_no_slot():
    assert by_croniter("0 0 30 2 *").after(micros(MONDAY)) is None


@pytest.mark.parametrize("expression", ["R * * * *", "0 r(2-5) * * *", "0,R 1 * * *"])
def test_an_expression_that_leaves_it_to_chance_is_refused(expression: str):
    with pytest.raises(ConfigurationError, match="is random, and schedulers must agree"):
        by_croniter(expression)


def test_an_interval_is_a_grid_that_does_not_depend_on_the_start():
    found = entry(interval=600).schedule.after(micros(MONDAY) + 1)

    assert found == micros(MONDAY + timedelta(seconds=600))


def test_an_anchor_moves_the_grid():
    week = entry(interval=7 * 86400, meta={"taskguard": {"anchor": MONDAY}})

    assert week.schedule.after(micros(MONDAY)) == micros(MONDAY + timedelta(days=7))


def test_an_anchor_of_a_cron_expression_is_an_error():
    with pytest.raises(ConfigurationError, match="anchor= needs interval="):
        entry(cron="* * * * *", meta={"taskguard": {"anchor": MONDAY}})


def test_our_options_are_not_passed_on_with_the_meta():
    job = CronJob("default", func=timed.plain, interval=5, meta={"mine": 1, "taskguard": {"overlap": "allow_all"}})
    made = entry_of(job, Timing(catch_up="all"))

    assert made.timing == Timing(overlap="allow_all", catch_up="all")
    assert job.job_options["meta"] == {"mine": 1}


def test_an_option_that_is_not_known_is_an_error():
    with pytest.raises(ConfigurationError, match="there is no option overlaps; write anchor, catch_up"):
        entry(meta={"taskguard": {"overlaps": "skip"}})


def test_entries_are_told_apart_by_all_that_they_say():
    all_of_them = [entry(1), entry(2), entry(1, interval=61), entry(1, cron="* * * * *"), entry({1, 2})]

    assert len({one.label for one in all_of_them}) == len(all_of_them)
    assert entry(1).label == entry(1).label
