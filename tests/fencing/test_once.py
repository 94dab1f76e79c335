"""`fence.once`: an effect and the memory of it commit together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from taskguard import ConfigurationError, Guard, current_fence
from taskguard.fence import Effects, Fence
from taskguard.fencing.effects import once
from taskguard.fencing.tables import purge
from tests.fencing.databases import Client, waits_for_a_row
from tests.waiting import wait_until

WORK = Effects("work", "job", 3600.0)


def test_it_is_true_once_and_each_name_is_an_effect_of_its_own(client: Client):
    answers = []
    for name in (None, "mail", None, "mail", "parcel"):
        with client.transaction() as tx:
            answers.append(bool(once(WORK, tx, name)))

    assert answers == [True, True, False, False, True]


def test_an_effect_that_is_rolled_back_has_not_happened(client: Client):
    with pytest.raises(ZeroDivisionError), client.transaction() as tx:
        assert once(WORK, tx, None)
        raise ZeroDivisionError
    with client.transaction() as tx:
        assert once(WORK, tx, None)


def test_the_second_time_finds_what_the_first_has_produced(client: Client):
    value = {"receipt": "é\N{SNOWMAN}", "cents": [1, 2.5, None]}
    with client.transaction() as tx:
        first = once(WORK, tx, None)
        assert first
        first.keep(value)
    with client.transaction() as tx:
        again = once(WORK, tx, None)
        assert not again
        assert again.value == value
        with pytest.raises(ConfigurationError, match="only the first"):
            again.keep("other")


def test_without_a_value_there_is_none(plain: Client):
    with plain.transaction() as tx:
        once(WORK, tx, None)
    with plain.transaction() as tx:
        assert once(WORK, tx, None).value is None


def test_it_is_refused_where_each_statement_commits_by_itself(url_of: Any, open_client: Any):
    connection = open_client(url_of("postgresql")).connection
    connection.autocommit = True
    with pytest.raises(ConfigurationError, match="commits each statement by itself"):
        once(WORK, connection, None)


def test_a_value_is_not_kept_after_the_transaction_of_its_effect(url_of: Any, open_client: Any):
    """A crash between the two would leave the effect without it."""
    connection = open_client(url_of("postgresql")).connection
    connection.autocommit = True
    with connection.transaction():
        first = once(WORK, connection, None)
    with pytest.raises(ConfigurationError, match="commits each statement by itself"):
        first.keep("value")


class TestHowLong:
    """Work by a key may be done again when `keep_for` is over; but not by the same job."""

    def test_another_job_s_work_by_the_same_key_is_other_work_when_the_time_is_over(self, plain: Client):
        with plain.transaction() as tx:
            once(Effects("key", "job 1", 3600), tx, None).keep("first")
        age(plain, 3700)
        with plain.transaction() as tx:
            again = once(Effects("key", "job 2", 3600), tx, None)
            assert again and again.value is None
        with plain.transaction() as tx:
            assert not once(Effects("key", "job 3", 3600), tx, None)

    def test_it_counts_from_the_effect_and_not_from_the_beginning_of_its_transaction(
        self, url_of: Any, open_client: Any
    ):
        """One that ran for longer than `keep_for` would be forgotten when it commits."""
        client = open_client(url_of("postgresql"))
        with client.transaction() as tx:
            client.execute("SELECT pg_sleep(1.1)")
            once(Effects("key", "job 1", 3600), tx, None)
            assert client.execute("SELECT made_at > extract(epoch FROM now()) + 0.55 FROM taskguard_once") == [(True,)]

    def test_the_same_job_s_is_not(self, plain: Client):
        with plain.transaction() as tx:
            once(Effects("key", "job 1", 3600), tx, None)
        age(plain, 3700)
        with plain.transaction() as tx:
            assert not once(Effects("key", "job 1", 3600), tx, None)

    def test_what_is_old_is_purged_so_many_at_a_time(self, plain: Client):
        with plain.transaction() as tx:
            for number in range(7):
                once(Effects(f"old {number}", "job", 60), tx, None)
            once(Effects("old but kept", "job", 90 * 86400), tx, None)
        age(plain, 31 * 86400)
        with plain.transaction() as tx:
            once(Effects("new", "job", 60), tx, None)
        purged = []
        while not purged or purged[-1]:
            with plain.transaction() as tx:
                purged.append(purge(tx, at_most=3))

        assert purged == [3, 3, 1, 0]
        with plain.transaction():
            assert plain.execute("SELECT count(*) FROM taskguard_once") == [(2,)]

    def test_a_mark_that_nobody_has_seen_for_long_is_purged(self, plain: Client, guard: Guard):
        with guard.hold("key") as fence, plain.transaction() as tx:
            fence.protect(tx, "old")
            plain.execute("UPDATE taskguard_fence SET seen_at = seen_at - ?", 31 * 86400)
            fence.protect(tx, "new")
        with plain.transaction() as tx:
            assert purge(tx) == 1


def age(client: Client, seconds: int) -> None:
    with client.transaction():
        client.execute("UPDATE taskguard_once SET made_at = made_at - ?, kept_until = kept_until - ?", seconds, seconds)


class TestWhatItGoesBy:
    def test_work_whose_outcome_is_reused_goes_by_its_key(self, guard: Guard, plain: Client):
        """It crashed between its commit and its end: the next run, under another owner, finds the effect done."""

        def work(fence: Fence) -> bool:
            with plain.transaction() as tx:
                return bool(once_and(fence, tx))

        def once_and(fence: Fence, tx: Any) -> Any:
            return fence.once(tx)

        with pytest.raises(SystemExit):
            guard.run("key", lambda fence: (work(fence), exit()), keep_for=60)

        assert guard.run("key", work, keep_for=60) is False

    def test_a_held_block_goes_by_itself(self, guard: Guard, plain: Client):
        answers = []
        for _ in range(2):
            with guard.hold("key") as fence, plain.transaction() as tx:
                answers += [bool(fence.once(tx)), bool(fence.once(tx))]
        assert answers == [True, False, True, False]

    def test_a_rerun_is_other_work(self, guard: Guard, plain: Client):
        def work() -> bool:
            fence = current_fence()
            assert fence is not None
            with plain.transaction() as tx:
                return bool(fence.once(tx))

        assert [guard.run("key", work, keep_for=60, on_done="rerun") for _ in range(2)] == [True, True]


class TestTwins:
    """Two transactions at the same time: the second waits for the end of the first."""

    @pytest.mark.parametrize("ends_well", [True, False])
    def test_the_twin_waits_and_then_knows(self, url: str, open_client: Callable[..., Client], ends_well: bool):
        first, second = open_client(url), None
        answers: list[bool] = []

        def twin() -> None:
            nonlocal second
            second = open_client(url)
            with second.transaction() as tx:
                answers.append(bool(once(WORK, tx, None)))

        thread = threading.Thread(target=twin)
        with suppress(ZeroDivisionError), first.transaction() as tx:
            assert once(WORK, tx, None)
            thread.start()
            wait_until(lambda: is_waiting(url, open_client), what="the twin at the row")
            assert answers == []
            if not ends_well:
                raise ZeroDivisionError
        thread.join(20)

        assert answers == [not ends_well]


def is_waiting(url: str, open_client: Callable[..., Client]) -> bool:
    # Of SQLite nobody can say; the lock is on the whole file.
    return url.startswith("sqlite") or waits_for_a_row(open_client(url))
