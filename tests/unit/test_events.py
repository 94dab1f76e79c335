from __future__ import annotations

import dataclasses
import logging
from typing import get_args

import pytest

from taskguard import Event, Guard
from taskguard.events import Kind, Listeners, log
from taskguard.protocol.policy import Policy
from taskguard.stores.memory import MemoryStore
from taskguard.testing.contract import claimed


def event(kind: str = "duplicate") -> Event:
    return Event(
        kind=kind,  # type: ignore[arg-type]
        key="report:7",
        owner="bob",
        holder="alice",
        state="running",
        since=1_700_000_000,
        token=42,
    )


def test_an_event_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        event().key = "other"  # type: ignore[misc]


def test_the_log_line_says_key_owner_holder_since_and_token(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "taskguard")
    log(event())

    (line,) = caplog.messages
    assert line == ("duplicate: report:7, owner bob, holder alice (running), since 2023-11-14 22:13:20 UTC, token 42")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_of_event_has_a_log_line(kind: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "taskguard")
    log(event(kind))

    assert len(caplog.records) == 1


def test_what_goes_as_it_should_is_quiet_and_what_does_not_is_a_warning(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "taskguard")
    for kind in ("claimed", "completed", "duplicate", "lost", "refused"):
        log(event(kind))

    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG", "INFO", "WARNING", "WARNING"]


def test_a_listener_that_fails_breaks_neither_the_others_nor_the_job(caplog: pytest.LogCaptureFixture):
    heard: list[Event] = []

    def fails(_: Event) -> None:
        raise RuntimeError("a bug in a listener")

    guard = Guard(MemoryStore(), listeners=[fails, heard.append])
    assert guard.run("key", lambda: 1, keep_for=60) == 1

    assert [event.kind for event in heard] == ["claimed", "completed"]
    assert "a bug in a listener" in caplog.text


def test_a_listener_can_be_added():
    heard: list[Event] = []
    listeners = Listeners([])
    listeners.add(heard.append)
    listeners.notify(event())

    assert heard == [event()]


def test_a_duplicate_is_told_with_who_holds_the_key():
    heard: list[Event] = []
    store = MemoryStore()
    lease = claimed(store, "alice")
    guard = Guard(store, listeners=[heard.append])
    guard.ask(guard.new_claim("key", "bob", Policy()))

    (told,) = heard
    assert (told.kind, told.owner, told.holder, told.state, told.token) == (
        "duplicate",
        "bob",
        "alice",
        "running",
        lease.token,
    )
    assert told.since > 0
