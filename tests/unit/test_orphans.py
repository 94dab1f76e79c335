"""Which messages of a silent worker are given back, for all that the store and the message may say."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import pytest

from taskguard.celery.orphans import (
    LEFT_ALONE,
    MOST_TIMES,
    SILENCE,
    Orphan,
    Rescued,
    due_in,
    entries_of,
    given_back,
    orphan_in,
    rescue,
)
from taskguard.engine.envelope import Envelope
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Entry
from taskguard.schedule.note import Note

ZONE = timezone(timedelta(hours=2))
HEADERS = {"id": "7f", "task": "shop.charge", "taskguard_id": "7f", "taskguard_key": "k", "taskguard_store": "s"}
SLOT = Note("nightly", 1.0, "slot", "slot:run", 60.0, "skip").as_dict()


def entry(state: Any, owner: str = "7f", remaining: float = 10.0, token: int = 5) -> Entry:
    return Entry(key="k", state=state, owner=owner, attempt="", token=token, since=0.0, remaining=remaining)


def orphan(**more: Any) -> Orphan:
    found = orphan_in({**HEADERS, **more}, "s", ZONE)
    assert found is not None
    return found


# -- whose it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        None,
        "headers",
        {},
        {"id": "7f", "task": "plain"},
        {**HEADERS, "id": "8a"},  # passed on to another call
        {**HEADERS, "id": None},  # Celery's first protocol: the message says nothing of its eta here
        {**HEADERS, "taskguard_store": "another"},
        {"id": "7f", "taskguard_id": "7f", "taskguard_idempotency_key": "only"},
    ],
)
def test_a_message_that_is_not_guarded_by_this_store_is_not_ours(headers):
    assert orphan_in(headers, "s", ZONE) is None


def test_a_message_that_was_published_while_the_store_was_away_is_ours():
    assert orphan(taskguard_store=None).envelope.key == "k"


def test_the_message_of_a_slot_is_ours_whatever_its_task_is():
    found = orphan(taskguard_key=None, taskguard_slot=SLOT)
    assert entries_of(found, None) == ["slot:run"]


@pytest.mark.parametrize(
    ("policy", "entries"),
    [
        (Policy(), ["k"]),
        (Policy(hold="queued"), ["k:job:7f"]),
        (None, ["k", "k:job:7f"]),
    ],
)
def test_the_entries_of_a_run(policy, entries):
    assert entries_of(orphan(), policy) == entries


# -- when --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent_for", "lease", "due"),
    [(SILENCE, 1.0, 0.0), (SILENCE - 1, 1.0, 1.0), (28.0, 30.0, 2.0), (30.0, 30.0, 0.0)],
)
def test_a_worker_counts_as_dead_after_a_lease_of_silence_and_not_sooner_than_four_stamps(silent_for, lease, due):
    assert due_in(orphan(), silent_for, lease, 0.0) == due


@pytest.mark.parametrize(
    ("eta", "due"),
    [
        ("1970-01-01T00:16:40+00:00", 0.0),
        ("1970-01-01T00:16:40Z", 0.0),
        ("1970-01-01T02:16:40", 0.0),  # in the app's zone
        ("1970-01-01T00:16:41+00:00", 1.0),
        ("1970-01-01T02:16:41", 1.0),
        ("tomorrow", float("inf")),
        (17, float("inf")),
    ],
)
def test_a_message_whose_eta_lies_ahead_or_cannot_be_read_is_left_alone(eta, due):
    assert due_in(orphan(eta=eta), 60.0, 30.0, 1000.0) == due


# -- what the store says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([entry("running")], 10.0),
        ([entry("running", remaining=0.0)], Rescued(1, 5)),
        ([entry("queued")], Rescued(1, 5)),
        ([entry("queued", remaining=-1.0)], Rescued(1, 5)),
        ([entry("done")], Rescued(1, 5)),
        ([entry("free")], Rescued(1, 5)),
        ([entry("running", owner="8a")], Rescued(1, 0)),
        ([entry("queued", owner="8a")], Rescued(1, 0)),
        ([None], Rescued(1, 0)),
        ([entry("running", remaining=-1.0), entry("running")], 10.0),  # of a slot and a key: one of them lives
        ([entry("running", owner="8a"), entry("running", remaining=4.0)], 4.0),
    ],
)
def test_only_a_job_that_runs_is_left_alone_for_as_long_as_its_lease_lasts(found, verdict):
    assert rescue(orphan(), found) == verdict


def test_a_message_comes_back_three_times_without_a_start_of_its_job():
    found, times = orphan(), 0
    while isinstance(verdict := rescue(found, [entry("queued")]), Rescued):
        found, times = orphan(taskguard_rescued=list(verdict)), times + 1
    assert (verdict, times) == (LEFT_ALONE, MOST_TIMES)


def test_a_start_of_its_job_counts_anew():
    verdict = rescue(orphan(taskguard_rescued=[3, 5]), [entry("running", remaining=-1.0, token=6)])
    assert verdict == Rescued(1, 6)


def test_other_jobs_that_have_the_key_meanwhile_do_not_count_as_its_start():
    found = [entry("running", owner="8a", token=9)]
    assert rescue(orphan(taskguard_rescued=[3, 0]), found) == LEFT_ALONE


def test_a_count_that_cannot_be_read_is_no_reason_to_give_it_back_for_ever():
    assert rescue(orphan(taskguard_rescued="often"), [None]) == LEFT_ALONE


# -- how ---------------------------------------------------------------------------------------------------------


def test_a_message_goes_back_as_kombu_redelivers_it_and_under_a_tag_of_its_own():
    message = {
        "body": "b",
        "content-type": "application/json",
        "headers": dict(HEADERS),
        "properties": {"delivery_tag": "old", "delivery_info": {"routing_key": "q"}, "priority": 3},
    }
    assert given_back(message, Rescued(1, 5), lambda: "new") == {
        "body": "b",
        "content-type": "application/json",
        "headers": {**HEADERS, "redelivered": True, "taskguard_rescued": [1, 5]},
        "properties": {
            "delivery_tag": "new",
            "delivery_info": {"routing_key": "q", "redelivered": True},
            "priority": 3,
        },
    }
    assert message["headers"] == HEADERS


def test_the_count_belongs_to_one_message_and_not_to_its_job():
    from taskguard.celery.headers import with_envelope, without_local

    headers = {**HEADERS, "taskguard_rescued": [1, 5]}
    assert "taskguard_rescued" not in without_local(headers)
    assert "taskguard_rescued" not in with_envelope(headers, Envelope(id="7f"))
