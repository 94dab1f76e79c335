"""A key as people read it: `order_id=42`, beside the digest that is the key's identity."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from taskguard.engine.envelope import Envelope
from taskguard.engine.guarded import GuardedFunction
from taskguard.guard import Guard
from taskguard.keys.choice import LONGEST_LABEL, By
from taskguard.keys.maker import KeyMaker
from taskguard.protocol.policy import Policy
from taskguard.stores import MemoryStore


def charge(order_id: Any, cents: int = 0) -> None:
    """What keys are made for."""


def label(by: By, *args: Any, **kwargs: Any) -> str:
    return KeyMaker("shop.charge", inspect.signature(charge), by).labelled(args, kwargs)[1]


@pytest.mark.parametrize(
    ("by", "args", "shown"),
    [
        ("order_id", (42,), "order_id=42"),
        ("order_id", ("42",), "order_id='42'"),
        (("order_id", "cents"), (42, 7), "order_id=42 cents=7"),
        ("{order_id}:{cents}", ("acme", 7), "acme:7"),
        ("order_id.day", ({"day": "monday"},), "order_id.day='monday'"),
        (lambda order_id, cents: f"customer {order_id}", (42,), "customer 42"),
        (lambda order_id, cents: order_id, (42,), "42"),
        (None, (42, 7), ""),
    ],
)
def test_a_label_says_what_the_key_is_made_of(by: By, args: tuple[Any, ...], shown: str):
    assert label(by, *args) == shown


def test_a_label_is_one_short_line_whatever_the_values_are():
    shown = label("{order_id}", "one\ntwo\x1b[31m\u2028" + "x" * 500)

    assert shown.isprintable()
    assert shown.startswith("one\\ntwo\\x1b[31m\\u2028xxx")
    assert len(shown) == LONGEST_LABEL


def test_a_value_whose_repr_fails_is_shown_all_the_same():
    class Broken(int):
        def __repr__(self) -> str:
            raise ValueError("no")

    assert label("cents", 1, Broken(7)).startswith("cents=<Broken instance at")


def test_a_class_that_has_the_name_of_a_built_in_one_is_shown_all_the_same():
    @dataclass(frozen=True)
    class array:
        name: str

    assert label("order_id", array("a")) == "order_id=<array>"


def test_a_function_that_makes_the_key_is_called_once():
    calls = []

    def by(order_id: int, cents: int) -> int:
        calls.append(order_id)
        return order_id

    label(by, 42)

    assert calls == [42]


class Charge(GuardedFunction):
    name = "shop.charge"

    def __init__(self, **options: Any) -> None:
        self._policy = Policy.of(**options)

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def keys(self) -> KeyMaker:
        return self._policy.keys_for(inspect.signature(charge), self.name)


def test_an_idempotency_key_is_its_own_label():
    envelope = Charge(key="order_id").identified(Envelope(idempotency_key="order-7"), (42,), {})

    assert envelope.label == "idempotency_key='order-7'"


def test_no_label_is_made_where_values_are_secret():
    assert Charge(key="order_id").identified(Envelope(), (42,), {}).label == "order_id=42"
    assert Charge(key="order_id", readable_keys=False).identified(Envelope(), (42,), {}).label == ""


def test_a_block_that_no_queue_runs_says_where_it_runs():
    store = MemoryStore()

    with Guard(store).hold("payment:7"):
        entry = store.get("payment:7")

    assert entry is not None
    assert ":" in entry.where
