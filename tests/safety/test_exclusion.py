"""One holder at a time, on every store, with real processes."""

from __future__ import annotations

import itertools
from contextlib import closing
from functools import partial
from uuid import uuid4

import pytest

from taskguard.testing.races import race, winners
from tests.naive import open_any
from tests.waiting import wait_until

pytestmark = pytest.mark.safety


@pytest.mark.parametrize("rounds", [50, pytest.param(200, marks=pytest.mark.faults)])
def test_of_8_processes_one_wins_every_round(store_url: str, rounds: int):
    opener = partial(open_any, store_url, namespace=uuid4().hex)
    with closing(opener()) as store:
        played = list(winners(store, opener, racers=8, rounds=rounds, keep_for=1.0))

        assert [len(grants) for grants in played] == [1] * rounds
        wait_until(lambda: not list(store.scan()), what="nothing left behind")


def test_of_8_processes_that_take_turns_each_gets_a_higher_token_in_real_time(store_url: str):
    opener = partial(open_any, store_url, namespace=uuid4().hex)
    with closing(opener()) as store:
        grants = race(store, opener, racers=8, rounds=10, keep_for=1.0)

        assert len(grants) == 80
        for earlier, later in itertools.pairwise(grants):
            assert earlier.token < later.token
            assert earlier.released < later.granted
        wait_until(lambda: not list(store.scan()), what="nothing left behind")
