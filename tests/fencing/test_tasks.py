"""What tasks go by, in this process: whose effects are whose, and a refusal where nothing can be put back."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard import Fence, LeaseLostError, StaleFenceError, StoreUnavailableError
from tests.celery.inprocess import guarded, make_app, sent, store_of
from tests.fencing.databases import Client
from tests.fencing.test_healing import AHEAD, raise_mark


@pytest.fixture
def shop(url_of: Any, open_client: Any) -> Client:
    return open_client(url_of("sqlite"))


def test_two_tasks_with_the_same_key_of_the_caller_s_have_their_own_effects(shop: Client):
    app = make_app()

    def once(key: str, fence: Fence) -> bool:
        with shop.transaction() as tx:
            return bool(fence.once(tx))

    charge = guarded(app, name="charge")(once)
    mail = guarded(app, name="mail")(once)
    calls = [task.apply(("a",), headers={"taskguard_idempotency_key": "order 7"}) for task in (charge, mail, charge)]

    assert [call.get() for call in calls] == [True, True, False]


def test_a_task_that_runs_unguarded_has_a_fence_and_does_not_do_again_what_it_has_done(shop: Client, guard: Any):
    app = make_app()
    app.conf.taskguard_on_store_error = "run_unguarded"
    fences = []

    @guarded(app, on_done="reuse_success", keep_for=60)
    def charge(key: str, fence: Fence) -> bool:
        fences.append(fence)
        with shop.transaction() as tx:
            fence.protect(tx)
            first = bool(fence.once(tx))
        if first:
            raise SystemExit  # its end never reaches the store
        return first

    with pytest.raises(SystemExit):
        charge.apply(("a",)).get()
    store = charge.taskguard.app_guard.guard.store
    charge.taskguard.app_guard.guard.patience = 0.1
    store.claim = silent
    assert charge.apply(("a",)).get() is False
    assert fences[0].token < fences[1].token
    assert fences[0].key == fences[1].key and fences[0].idempotency_key == fences[1].idempotency_key


def silent(*_: Any) -> Any:
    raise StoreUnavailableError("store", "timed out")


def test_a_refusal_in_eager_mode_is_raised_and_the_next_call_has_a_higher_token(shop: Client):
    app = make_app()

    @guarded(app)
    def write(key: str, fence: Fence) -> int:
        with shop.transaction() as tx:
            fence.protect(tx, "account")
        return fence.token

    raise_mark(shop, "account")
    with pytest.raises(StaleFenceError):
        write.apply(("a",)).get()
    assert write.apply(("a",)).get() > AHEAD


def test_a_mark_that_is_no_token_fails_the_job_and_does_not_put_it_back(shop: Client):
    app = make_app()

    @guarded(app)
    def write(key: str, fence: Fence) -> None:
        with shop.transaction() as tx:
            fence.protect(tx, "account")

    raise_mark(shop, "account", 2**60)
    with pytest.raises(StaleFenceError, match="set it to 0"):
        write.apply(("a",)).get()
    assert sent(app) == []


def test_a_lease_that_is_lost_in_eager_mode_is_raised_and_nothing_is_published():
    app = make_app()

    @guarded(app, lease=1)
    def write(key: str, fence: Fence) -> None:
        store_of(app).forget(fence.key)
        fence._ask(fence._holding)
        fence.check()

    with pytest.raises(LeaseLostError):
        write.apply(("a",)).get()
    assert sent(app) == []


@pytest.mark.parametrize("name", [42, b"bytes"])
def test_a_name_that_is_no_text_is_refused(shop: Client, guard: Any, name: Any):
    with guard.hold("key") as fence, shop.transaction() as tx, pytest.raises(ValueError, match="must be a string"):
        fence.protect(tx, name)
