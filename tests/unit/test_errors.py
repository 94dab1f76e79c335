from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from taskguard import errors
from taskguard.runtime.interrupt import _InThread, _LostInThreadError

FACTS: dict[str, tuple[Any, ...]] = {
    "TaskguardError": ("what happened",),
    "ConfigurationError": ("what to write instead",),
    "KeyArgumentError": ("order.lines[2]", "a value of type object has no stable form"),
    "StoreError": ("redis://host:6379/0", "the wrong type"),
    "StoreUnavailableError": ("redis://host:6379/0", "timed out"),
    "DuplicateTaskError": ("key", "alice", "queued", 1_700_000_000.5, 7),
    "WaitTimeoutError": ("key", "alice", "running", 1_700_000_000.5, 7, 3.5),
    "PayloadMismatchError": ("key", "alice"),
    "LeaseLostError": ("key", 7, True, 4711),
    "StaleFenceError": ("key", 7, "account:42", 9),
    "VersionConflictError": ("account", 3, 4),
    "RowCountError": ("account", 1, 2),
    "TooManyStartsError": ("key", "alice", 4, 3),
    "EarlierFailureError": ("key", "alice", "ValueError: no"),
    "OutcomeNotKeptError": ("key", "alice", "too large"),
}
CLASSES = [thing for _, thing in inspect.getmembers(errors, inspect.isclass) if issubclass(thing, Exception)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_with_all_its_facts(kind: type[Exception]):
    error = kind(*FACTS[kind.__name__])
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
    assert copy.args == FACTS[kind.__name__]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_facts_as_attributes_and_names_them_all(kind: type[Exception]):
    names = [name for name in inspect.signature(kind.__init__).parameters if name not in ("self", "args", "kwargs")]
    error = kind(*FACTS[kind.__name__])

    assert [getattr(error, name) for name in names] == list(FACTS[kind.__name__])[: len(names)]


def test_every_error_is_in_the_tree_that_is_drawn():
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in CLASSES)


def test_every_error_can_be_imported_from_the_top():
    import taskguard

    assert all(getattr(taskguard, kind.__name__) is kind for kind in CLASSES)


def test_a_duplicate_says_who_holds_the_key_and_since_when():
    error = errors.DuplicateTaskError("report:7", "alice", "running", 1_700_000_000, 42)

    assert str(error) == "report:7 is already running (owner alice, since 2023-11-14 22:13:20 UTC, token 42)"


def test_an_error_raised_in_a_thread_is_pickled_as_the_public_one():
    import threading

    _InThread._sent[threading.get_ident()] = {_InThread(): errors.LeaseLostError("key", 7)}
    copy = pickle.loads(pickle.dumps(_LostInThreadError()))

    assert type(copy) is errors.LeaseLostError
    assert copy.args == ("key", 7, False)
