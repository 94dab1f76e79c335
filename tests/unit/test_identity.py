"""A worker that looks at another store than the publisher does."""

from __future__ import annotations

import time

from taskguard import Guard
from taskguard.engine.store_identity import ASK_AGAIN, KEY, TOLERANCE, Identity
from taskguard.stores.memory import MemoryStore


def test_all_who_look_at_one_store_know_it_by_one_name():
    guard = Guard(MemoryStore())
    publisher, worker = Identity(), Identity()
    name = publisher.name(guard, 0)
    assert worker.name(guard, 0) == name
    assert not worker.is_other(guard, name, time.time())


def test_a_message_from_another_store_is_recognised():
    name = Identity().name(Guard(MemoryStore()), 0)
    worker, mine = Identity(), Guard(MemoryStore())
    worker.name(mine, 0)
    assert worker.is_other(mine, name, time.time() + TOLERANCE + 1)


def test_an_empty_store_is_not_given_the_name_of_another():
    name = Identity().name(Guard(MemoryStore()), 0)
    worker, mine = Identity(), Guard(MemoryStore())
    worker.is_other(mine, name, time.time())
    assert worker.name(mine, 0) != name


def test_a_message_that_is_older_than_the_store_is_taken():
    name = Identity().name(Guard(MemoryStore()), 0)
    worker, mine = Identity(), Guard(MemoryStore())  # it was emptied or replaced since
    assert not worker.is_other(mine, name, time.time() - 3600)


def test_an_emptied_store_is_given_the_name_it_had():
    store = MemoryStore()
    guard, identity = Guard(store), Identity()
    name = identity.name(guard, 0)
    store.forget(KEY)
    identity._asked -= ASK_AGAIN + 1
    assert identity.name(guard, 0) == name
    assert Identity().name(guard, 0) == name
