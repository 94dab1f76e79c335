"""What travels with a message is read by the releases before and after the one that wrote it."""

from __future__ import annotations

import json

from taskguard.celery.headers import envelope_in, with_envelope
from taskguard.engine.envelope import Envelope
from taskguard.rq.job_metadata import read, written

SLOT = {"schedule": "nightly"}
SAID = Envelope(
    key="shop.charge:1:00",
    queue_entry="shop.charge:1:00:next",
    payload="p",
    idempotency_key="k",
    store="s",
    at=1.5,
    join="j",
    since=2.5,
    slot=SLOT,
    floor=9,
    after_outage=True,
)

# Recorded from the release that wrote each queue's part by itself: these names do not change.
CELERY = {
    "taskguard_id": "7f",
    "taskguard_key": "shop.charge:1:00",
    "taskguard_place": "shop.charge:1:00:next",
    "taskguard_payload": "p",
    "taskguard_idempotency_key": "k",
    "taskguard_store": "s",
    "taskguard_at": 1.5,
    "taskguard_join": "j",
    "taskguard_copy": "c",
    "taskguard_heir": "h",
    "taskguard_rounds": 3,
    "taskguard_since": 2.5,
    "taskguard_slot": {"schedule": "nightly"},
    "taskguard_floor": 9,
    "taskguard_after_outage": True,
    "taskguard_unanswered": True,
}
RQ = (
    '{"made":"20261117","run":"r","key":"shop.charge:1:00","place":"shop.charge:1:00:next","payload":"p",'
    '"idempotency_key":"k","store":"s","at":1.5,"join":"j","since":2.5,"floor":9,"after_outage":true,'
    '"slot":{"schedule":"nightly"}}'
)
OF_CELERY = SAID._replace(id="7f", copy="c", heir="h", rounds=3, unanswered=True)
OF_RQ = SAID._replace(made="20261117", run="r")


def test_a_recorded_message_of_celery_is_read():
    assert envelope_in({"theirs": 1, **CELERY}, "7f") == OF_CELERY


def test_a_message_of_celery_is_written_as_it_was_recorded():
    assert with_envelope({"theirs": 1, "taskguard_copy": "older"}, OF_CELERY) == {"theirs": 1, **CELERY}


def test_a_recorded_note_of_rq_is_read():
    assert read(RQ.encode()) == OF_RQ


def test_a_note_of_rq_is_written_as_it_was_recorded():
    assert json.loads(written(OF_RQ)) == json.loads(RQ)


def test_what_a_later_release_adds_is_left_unread():
    assert envelope_in({**CELERY, "taskguard_newer": 1}, "7f") == OF_CELERY
    assert read(json.dumps({**json.loads(RQ), "newer": 1})) == OF_RQ


def test_the_envelope_of_another_job_is_not_taken():
    assert envelope_in(CELERY, "8e") == Envelope()
