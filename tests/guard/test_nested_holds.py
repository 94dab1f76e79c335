"""Blocks that hold one key within each other: it is held until the last of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from taskguard import ConfigurationError, Event, Fence, Guard, LeaseLostError, StaleFenceError, current_fence
from taskguard.protocol.store import Held, Lease
from taskguard.stores.memory import MemoryStore
from taskguard.testing.contract import ask
from tests.waiting import wait_until


class Outer:
    """An outer block that can end while an inner one still runs: a fixture, a stream, an exit stack."""

    def __init__(self, guard: Guard, **options: Any) -> None:
        self._stack = ExitStack()
        self.fence: Fence = self._stack.enter_context(guard.hold("key", **options))

    def end(self) -> None:
        self._stack.close()


def is_held(store: MemoryStore) -> bool:
    return isinstance(store.claim(ask("stranger")), Held)


def test_the_key_is_held_until_an_inner_block_that_outlives_the_outer_one_ends(guard: Guard, store: MemoryStore):
    outer = Outer(guard)
    with guard.hold("key") as fence:
        outer.end()

        assert fence is outer.fence
        assert is_held(store)
        fence.check()
        assert current_fence() is fence
    assert not is_held(store)
    assert current_fence() is None


def test_a_generator_that_is_closed_within_an_inner_block_leaves_it_the_key(guard: Guard, store: MemoryStore):
    def streaming() -> Iterator[None]:
        with guard.hold("key"):
            yield

    stream = streaming()
    next(stream)
    with guard.hold("key"):
        stream.close()  # type: ignore[attr-defined]
        assert is_held(store)
    assert not is_held(store)


def test_generators_of_one_thread_that_take_turns_hold_the_key_until_the_last_ends(guard: Guard, store: MemoryStore):
    def task() -> Iterator[None]:
        with guard.hold("key"):
            yield

    first, second = task(), task()
    next(first)
    next(second)
    assert next(first, "over") == "over"
    assert is_held(store)
    assert next(second, "over") == "over"
    assert not is_held(store)


def test_it_is_renewed_as_long_as_the_last_block_runs(guard: Guard, store: MemoryStore, events: list[Event]):
    outer = Outer(guard, lease=0.3)
    with guard.hold("key") as fence:
        outer.end()
        until = fence._holding.valid_until
        wait_until(lambda: fence._holding.valid_until > until + 0.3)
        assert is_held(store)
    assert "lost" not in [event.kind for event in events]


def test_an_error_in_the_outer_block_does_not_take_the_key_from_the_inner_one(guard: Guard, store: MemoryStore):
    @contextmanager
    def outer() -> Iterator[None]:
        with guard.hold("key"):
            yield

    block = outer()
    block.__enter__()
    with guard.hold("key"):
        assert not block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert is_held(store)
    assert not is_held(store)


def test_an_inner_block_that_is_last_is_told_if_the_lease_was_lost(guard: Guard, store: MemoryStore):
    outer = Outer(guard, lease=60)
    with pytest.raises(LeaseLostError), guard.hold("key"):
        outer.end()
        store.forget("key")


@pytest.mark.parametrize("in_the_inner", [True, False])
def test_a_lease_that_is_lost_interrupts_whichever_block_runs(guard: Guard, store: MemoryStore, in_the_inner: bool):
    outer = Outer(guard, lease=0.3)
    with pytest.raises(LeaseLostError):  # noqa: SIM117 - the block that is left
        with guard.hold("key"):
            if in_the_inner:
                outer.end()
            store.forget("key")
            wait_until(lambda: False)
    with pytest.raises(LeaseLostError) if not in_the_inner else ExitStack():
        outer.end()


def test_the_outer_one_wants_to_go_on_and_the_inner_one_is_not_interrupted(guard: Guard, store: MemoryStore):
    with guard.hold("key", lease=0.3, on_lost="continue") as fence, guard.hold("key", on_lost="continue"):
        store.forget("key")
        wait_until(lambda: fence.lost)


@pytest.mark.parametrize("inner_is_last", [True, False])
def test_others_are_kept_out_as_long_as_any_of_the_blocks_asked_for(
    guard: Guard, store: MemoryStore, inner_is_last: bool
):
    outer = Outer(guard)
    with guard.hold("key", hold_at_least=1):
        if inner_is_last:
            outer.end()
    if not inner_is_last:
        outer.end()

    assert is_held(store)
    wait_until(lambda: not is_held(store))


def test_what_a_resource_refused_in_the_outer_block_raises_the_next_token(guard: Guard, store: MemoryStore):
    @contextmanager
    def outer() -> Iterator[Fence]:
        with guard.hold("key") as fence:
            yield fence

    block = outer()
    fence = block.__enter__()
    mark = fence.token + 10**9
    refused = StaleFenceError("key", fence.token, "account", mark)
    with guard.hold("key"):
        assert not block.__exit__(StaleFenceError, refused, None)

    with guard.hold("key") as later:
        assert later.token > mark


def test_a_hold_within_a_run_that_is_over_is_told_so(guard: Guard):
    kept = ExitStack()

    def function() -> None:
        kept.enter_context(guard.hold("key"))

    guard.run("key", function, keep_for=60)
    with pytest.raises(LeaseLostError):
        kept.close()


def test_a_task_whose_inner_block_outlives_the_outer_one_keeps_the_key(guard: Guard, store: MemoryStore):
    async def main() -> None:
        outer = Outer(guard)
        with guard.hold("key"):
            outer.end()
            await asyncio.sleep(0)
            assert is_held(store)

    asyncio.run(main())
    assert not is_held(store)


def test_many_nested_blocks_within_a_long_one_leave_nothing_behind(guard: Guard):
    with guard.hold("key") as fence:
        for _ in range(100):
            with guard.hold("key"):
                pass
        assert len(fence._holding.presences or ()) <= 2


def test_a_hold_is_for_one_block(guard: Guard, store: MemoryStore):
    hold = guard.hold("key")
    with hold:
        pass
    with pytest.raises(ConfigurationError, match="call hold\\(\\) again"), hold:
        pytest.fail("entered")
    assert isinstance(store.claim(ask("stranger")), Lease)


def test_a_hold_as_a_decorator_holds_the_key_for_each_call(guard: Guard, store: MemoryStore):
    @guard.hold("key")
    def function() -> bool:
        return is_held(store)

    assert function()
    guard.store.forget("key")
    assert function()


def test_blocks_whose_managers_are_kept_give_the_key_back_when_the_last_of_them_ends(guard: Guard, store: MemoryStore):
    """A class that enters a hold by hand keeps the manager for longer than the block."""
    outer, inner = guard.hold("key"), guard.hold("key")
    outer.__enter__()
    inner.__enter__()
    inner.__exit__(None, None, None)
    assert is_held(store)
    outer.__exit__(None, None, None)

    assert not is_held(store)
    assert current_fence() is None


def test_a_function_that_only_begins_when_it_is_called_cannot_be_decorated(guard: Guard):
    async def later() -> None: ...

    with pytest.raises(ConfigurationError, match="guards nothing"):
        guard.hold("key")(later)
