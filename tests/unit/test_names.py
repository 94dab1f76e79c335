"""Which names are refused, and what the errors say."""

from __future__ import annotations

import pytest

from taskguard import ConfigurationError, KeyArgumentError, open_store
from taskguard.keys.maker import KeyMaker
from taskguard.keys.signatures import signature_of
from taskguard.protocol import names
from taskguard.protocol.store import Claim
from taskguard.schedule.boundaries import Interval
from taskguard.schedule.entry import ScheduledEntry


def short(value: object) -> str:
    """The id of a case."""
    return ascii(value)[:20]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "empty"),
        (7, "must be a non-empty string"),
        ("a\0b", "NUL"),
        ("a\ud800", "lone surrogate.*replace"),
        ("x" * 1025, "1025 bytes.*1024.*digest"),
        ("é" * 513, "1026 bytes"),
    ],
    ids=short,
)
def test_a_key_that_cannot_be_kept_is_an_error_that_says_why_and_what_to_write(key: str, said: str):
    with pytest.raises(ConfigurationError, match=said) as caught:
        names.check_key(key)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", ["k", "x" * 1024, "é" * 512, "a\nb", "\U0001f600", " "], ids=short)
def test_any_other_key_is_taken_as_it_is(key: str):
    assert names.check_key(key) == key


def test_all_names_together_fit_the_index_of_the_narrowest_store():
    # A row of a B-tree of PostgreSQL, with what it adds to each of three texts.
    assert names.NAMESPACE + names.ENTRY + names.OWNER + 3 * 7 + 8 < 2704
    # What an entry may be called that is made of a key and a job.
    assert names.KEY + len(":beside:") + names.OWNER <= names.ENTRY


def test_a_claim_that_is_refused_says_whose_it_is():
    claim = Claim("invoice:42", "job-7", "a", lease=float("nan"), keep_for=60)
    with pytest.raises(ConfigurationError, match="invoice:42, owner job-7: lease must be .* not nan"):
        names.check_claim(claim)


def test_a_key_space_that_makes_keys_too_long_is_refused_when_the_task_is_made():
    def body(a: int) -> None: ...

    with pytest.raises(ConfigurationError, match="key_space"):
        KeyMaker("x" * 1000, signature_of(body))
    longest = KeyMaker("x" * 984, signature_of(body))
    assert names.check_key(longest((1,), {}))


def test_a_template_makes_a_short_key_of_a_long_argument():
    def body(tenant: str) -> None: ...

    keys = KeyMaker("task", signature_of(body), "{tenant}")
    assert len(keys(("x" * 10_000,), {})) < 50
    assert keys(("x" * 10_000,), {}) != keys(("x" * 9_999,), {})


def test_a_payload_of_very_many_parameters_is_short_enough():
    named = {f"a_rather_long_parameter_{n}": 0 for n in range(200)}
    exec(f"def body({', '.join(named)}): ...", scope := {})
    keys = KeyMaker("task", signature_of(scope["body"]), "a_rather_long_parameter_0")
    told = keys.likeness((), named)

    assert len(told) < names.PAYLOAD
    assert told != keys.likeness((), {**named, "a_rather_long_parameter_7": 1})


@pytest.mark.parametrize(
    ("given", "said"), [("x" * 1025, "1025 bytes"), ("a\0", "NUL"), ("\ud800", "surrogate")], ids=short
)
def test_an_idempotency_key_that_cannot_be_kept_is_refused(given: str, said: str):
    def body() -> None: ...

    with pytest.raises(KeyArgumentError, match=f"idempotency_key.*{said}"):
        KeyMaker("task", signature_of(body)).explicit(given)


@pytest.mark.parametrize("namespace", ["", "x" * 129, "a\0b", "a\nb", 7, None], ids=short)
def test_a_namespace_that_cannot_be_kept_is_refused(namespace: str):
    with pytest.raises(ConfigurationError, match="namespace"):
        open_store("memory://", namespace=namespace)


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 1025], ids=short)
def test_a_schedule_entry_with_a_name_that_cannot_be_kept_is_refused(name: str):
    with pytest.raises(ConfigurationError, match="name of a schedule entry"):
        ScheduledEntry(name, Interval(60))


@pytest.mark.parametrize("sent", ["x" * 2000, "/é" * 2000, "a\0b" * 500, "\ud800"], ids=short)
def test_what_somebody_sent_is_shortened_and_told_apart_by_a_digest(sent: str):
    made = names.shortened(sent)
    assert names.check_key(made)
    assert made != names.shortened(sent + "x")
    assert names.shortened("/orders/7") == "/orders/7"
