"""The options of a task: what is read, what is refused, and what the refusal says to write instead."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from typing import Any

import pytest

from taskguard.errors import ConfigurationError
from taskguard.keys.signatures import signature_of
from taskguard.protocol.policy import OnConflict, Policy


def refusal(**options):
    """What is said about options that cannot work."""
    with pytest.raises(ConfigurationError) as caught:
        Policy.of(**options)
    return str(caught.value)


# -- what is read ------------------------------------------------------------------------------------------------


def test_nothing_has_to_be_chosen():
    assert Policy.of() == Policy(
        key=None,
        hold="until_done",
        on_conflict=OnConflict(enqueue="skip", run="skip"),
        on_done="rerun",
        lease=30.0,
        key_space=None,
        keep_for=None,
        hold_at_most=None,
        hold_at_least=None,
        wait_up_to=3600.0,
        max_starts=3,
        on_lost="abort",
        enforce=True,
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("hold", hold) for hold in ("until_done", "running", "queued", "one_queued_one_running")],
        *[("on_done", "rerun"), ("max_starts", 1), ("enforce", False), ("key_space", "billing")],
        *[("on_lost", on_lost) for on_lost in ("abort", "abort_if_unsure", "continue")],
        *[("key", key) for key in (None, "order_id", ("user.id", "day"), "{tenant}:{day}", len)],
    ],
)
def test_an_option_is_kept_as_it_was_given(option, value):
    assert getattr(Policy.of(**{option: value}), option) == value


@pytest.mark.parametrize("option", ["lease", "keep_for", "hold_at_most", "hold_at_least"])
@pytest.mark.parametrize("given", [60, 60.0, timedelta(minutes=1)], ids=repr)
def test_a_duration_is_kept_as_seconds(option, given):
    kept = getattr(Policy.of(**{option: given}), option)

    assert (type(kept), kept) == (float, 60.0)


def test_the_time_to_wait_may_be_none_at_all():
    assert Policy.of(on_conflict="wait", wait_up_to=0).wait_up_to == 0.0


@pytest.mark.parametrize("word", ["skip", "raise", "wait", "run_once_more"])
def test_one_word_is_for_both_stages(word):
    assert Policy.of(on_conflict=word).on_conflict == OnConflict(enqueue=word, run=word)


def test_each_stage_may_have_its_own_word():
    policy = Policy.of(on_conflict={"enqueue": "raise", "run": "wait"})

    assert policy.on_conflict == OnConflict(enqueue="raise", run="wait")


def test_what_is_kept_without_being_told_is_kept_two_hours():
    assert Policy.of().keep == 7200.0


def test_what_is_kept_as_told_is_kept_so_long():
    assert Policy.of(keep_for=timedelta(days=1)).keep == 86400.0


def test_a_list_of_names_is_kept_as_a_tuple():
    assert Policy.of(key=["a", "b"]).key == ("a", "b")


def test_a_policy_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Policy.of().lease = 5.0


def test_a_policy_can_be_copied_with_another_option():
    policy = replace(Policy.of(on_conflict="wait", lease=5), lease=7)

    assert policy == Policy.of(on_conflict="wait", lease=7)


def test_a_copy_is_checked_too():
    with pytest.raises(ConfigurationError, match="hold_at_most=30 or more"):
        replace(Policy.of(), hold_at_most=10.0)


def test_a_policy_made_directly_is_checked_too():
    with pytest.raises(ConfigurationError, match="write keep_for"):
        Policy(on_done="reuse")


def test_a_policy_survives_pickling():
    policy = Policy.of(on_conflict="wait", keep_for=60)

    assert pickle.loads(pickle.dumps(policy)) == policy


# -- what is refused by itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "way_out"),
    [
        ("hold", "untl_done", '(did you mean until_done?); write one of: "until_done", "running", "queued", "one_'),
        ("hold", None, 'write one of: "until_done", "running", "queued", "one_queued_one_running"'),
        ("on_done", "reuse_sucess", "did you mean reuse_success?"),
        ("on_done", True, 'write one of: "rerun", "reuse_success", "reuse"'),
        ("on_lost", "ignore", 'write one of: "abort", "abort_if_unsure", "continue"'),
        (
            "on_conflict",
            "skp",
            'did you mean skip?); write one of: "skip", "raise", "wait", "run_once_more"',
        ),
        ("on_conflict", None, 'write one of: "skip"'),
        ("on_conflict", {"enqueue": "skip"}, 'write on_conflict={"enqueue": "skip", "run": "wait"}, or one word'),
        ("on_conflict", {"enqueue": "skip", "run": "skip", "beat": "skip"}, 'exactly the keys "enqueue" and "run"'),
        (
            "on_conflict",
            {"enqueue": "skip", "run": "rase"},
            'on_conflict["run"]="rase" is not known (did you mean raise?)',
        ),
        ("on_conflict", OnConflict("skip", "rase"), "did you mean raise?"),  # type: ignore[arg-type]
        ("lease", True, "write lease=30 or lease=timedelta(seconds=30)"),
        ("lease", None, "write lease=30"),
        ("lease", "30", 'lease must be a number of seconds or a timedelta, not "30"; write lease=30'),
        ("lease", float("nan"), "must be a number of seconds"),
        ("lease", float("inf"), "must be a number of seconds"),
        ("lease", 10**400, "must be a number of seconds"),
        ("lease", 0, "write lease=0.05 or more"),
        ("lease", -1, "write lease=0.05 or more"),
        (
            "lease",
            0.049,
            "lease=0.049 is shorter than 0.05 seconds, too short to be renewed three times; write lease=0.05",
        ),
        ("keep_for", 0, "write keep_for=60 or more"),
        ("keep_for", timedelta(seconds=-1), "keep_for must be a positive number of seconds, not -1; write keep_for=60"),
        ("keep_for", False, "write keep_for=30"),
        ("hold_at_most", 0, "write hold_at_most=60 or more"),
        ("hold_at_least", -5, "write hold_at_least=1 or more"),
        ("hold_at_least", "1h", "write hold_at_least=30"),
        ("wait_up_to", -1, "write wait_up_to=0 or more"),
        ("wait_up_to", None, "write wait_up_to=30"),
        ("max_starts", 0, "max_starts must be a whole number from 1, not 0; write max_starts=1 for at most one start"),
        ("max_starts", True, "must be a whole number from 1"),
        ("max_starts", 2.0, "must be a whole number from 1"),
        ("max_starts", None, "must be a whole number from 1"),
        ("key_space", "", 'write one such as key_space="billing", or leave it out'),
        ("key_space", 5, 'write one such as key_space="billing"'),
        ("enforce", "no", "write enforce=True or enforce=False"),
        ("enforce", 0, "write enforce=True or enforce=False"),
        ("key", (), "write a parameter's name"),
        ("key", 5, "write a parameter's name"),
        ("key", "{", 'such as "{tenant}:{day}"'),
        ("key", "a..b", '"order.id"'),
    ],
    ids=repr,
)
def test_a_value_that_cannot_be_is_refused_with_the_way_out(option, value, way_out):
    said = refusal(**{option: value})

    assert said.startswith(option)
    assert way_out in said


def test_an_option_that_is_none_is_refused_with_the_nearest():
    assert "there is no option on_conflct (did you mean on_conflict?); write one of: key, hold," in refusal(
        on_conflct="skip"
    )


def test_an_option_like_none_of_them_is_refused_with_all_there_are():
    assert refusal(xyz=1).endswith(
        "there is no option xyz; write one of: key, hold, on_conflict, on_done, lease, key_space, keep_for, "
        "hold_at_most, hold_at_least, wait_up_to, max_starts, on_lost, enforce, readable_keys"
    )


# -- what is refused together ------------------------------------------------------------------------------------

PAIRS = [
    ({"lease": 30, "hold_at_most": 10}, "write lease=10 or less, or hold_at_most=30 or more"),
    ({"hold_at_most": 29.5}, "lease=30 is longer than hold_at_most=29.5"),
    ({"hold_at_least": 90, "hold_at_most": 60}, "write hold_at_most=90 or more, or hold_at_least=60 or less"),
    ({"on_done": "reuse"}, "write keep_for=86400 for a day"),
    ({"on_done": "reuse_success"}, "write keep_for=86400 for a day"),
    ({"keep_for": 20}, "write keep_for=30 or more"),
    (
        {"lease": 10_000_000},
        "write keep_for=10000000 or more, or a short lease: taskguard renews it while the job runs",
    ),
    ({"hold": "queued", "on_done": "reuse", "keep_for": 60}, 'write hold="until_done", or leave on_done out'),
    ({"hold": "queued", "on_done": "reuse_success", "keep_for": 60}, 'write hold="until_done", or leave on_done out'),
    ({"wait_up_to": 60}, 'write on_conflict="wait", or leave wait_up_to out'),
    ({"hold": "queued", "on_conflict": "wait"}, 'write hold="until_done" or hold="running"'),
    ({"hold": "queued", "on_conflict": "run_once_more"}, 'write hold="until_done", or on_conflict="skip"'),
]


@pytest.mark.parametrize(
    ("options", "way_out"), PAIRS, ids=lambda value: value if isinstance(value, str) else str(value)
)
def test_options_that_cannot_work_together_are_refused_with_the_way_out(options, way_out):
    assert way_out in refusal(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"lease": 30, "hold_at_most": 30},
        {"hold_at_least": 60, "hold_at_most": 60},
        {"on_done": "reuse", "keep_for": 60},
        {"keep_for": 30},
        {"hold_at_least": 86400, "keep_for": 60},
        {"wait_up_to": 3600},
        {"wait_up_to": 60, "on_conflict": "wait"},
        {"wait_up_to": 60, "on_conflict": {"enqueue": "skip", "run": "wait"}},
        {"on_done": "reuse", "keep_for": 60, "hold": "running"},
        {"on_done": "reuse", "keep_for": 60, "hold": "one_queued_one_running"},
        {"hold": "running", "on_conflict": "run_once_more"},
    ],
    ids=str,
)
def test_options_that_can_work_together_are_taken(options):
    assert isinstance(Policy.of(**options), Policy)


@pytest.mark.parametrize(
    ("hold", "on_conflict"),
    [
        ("queued", {"enqueue": "skip", "run": "run_once_more"}),
        ("queued", {"enqueue": "skip", "run": "wait"}),
    ],
)
def test_what_is_said_for_a_stage_without_twins_is_let_through(hold, on_conflict):
    assert Policy.of(hold=hold, on_conflict=on_conflict).on_conflict == OnConflict(**on_conflict)


# -- the report --------------------------------------------------------------------------------------------------


def test_all_that_is_wrong_is_said_at_once():
    said = refusal(lese=5, lease=True, on_done="reuse", hold_at_least=90, hold_at_most=60, key="{}")

    assert said.startswith("5 problems with the options:\n- there is no option lese (did you mean lease?)")
    for part in (
        "\n- lease must be a number of seconds or a timedelta, not True",
        "\n- on_done=",
        "\n- hold_at_least=90",
        "\n- key='{}'",
    ):
        assert part in said


def test_an_option_that_cannot_be_read_is_not_also_compared_with_others():
    said = refusal(lease="abc", hold_at_most=10)

    assert said.startswith('lease must be a number of seconds or a timedelta, not "abc"')
    assert "longer" not in said


# -- the keys of a function --------------------------------------------------------------------------------------


def charge(order_id, cents, fence): ...


def test_the_keys_of_a_task_are_in_the_space_of_its_name():
    keys = Policy.of(key="order_id").keys_for(signature_of(charge), "shop.charge")

    assert keys((1, 100), {}).startswith("shop.charge:1:")


def test_tasks_that_name_one_space_share_their_keys():
    one, other = (
        Policy.of(key=key, key_space="orders").keys_for(signature_of(function), function.__name__)
        for key, function in [("order_id", charge), ("number", lambda number: None)]
    )

    assert one((1, 100), {}) == other((1,), {})


def test_a_key_of_an_argument_that_the_function_lacks_is_refused_with_those_it_has():
    with pytest.raises(ConfigurationError) as caught:
        Policy.of(key="oder_id").keys_for(signature_of(charge), "shop.charge")

    assert str(caught.value) == (
        "shop.charge: key='oder_id' names 'oder_id', which is not a parameter; the parameters to choose from are: "
        "order_id, cents; did you mean 'order_id'?"
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"key": "order_id", "lease": timedelta(seconds=5)}, {"on_conflict": {"enqueue": "skip", "run": "wait"}}],
)
def test_options_that_were_checked_before_are_read_the_same(options: dict[str, Any]):
    assert Policy.trusted(**options) == Policy(**options)
