"""The items of `map`, `starmap` and `chunks`: Celery calls the body of each directly, so each is guarded here.

An item is guarded as by `Guard.run`: it waits for the holder in place and ends with the holder's outcome. Its owner is
the id of its job and its index, so that a redelivered job does not run the items that have ended.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from taskguard.celery.guarding import TaskGuard
from taskguard.celery.internals import get_current_task
from taskguard.celery.result import failure_of
from taskguard.engine.claiming import Claiming, Outlasts
from taskguard.engine.under import known_by, run_claimed
from taskguard.engine.unguarded import UnguardedFence
from taskguard.engine.work import effects_of
from taskguard.errors import StaleFenceError, StoreError, StoreUnavailableError
from taskguard.protocol.entry_names import run_of
from taskguard.protocol.outcomes import value_of
from taskguard.protocol.store import Completed

_MAPS = ("celery.map", "celery.starmap")
_COUNT = "_taskguard_items"
_ITEM = ":item:"
_OF_RQ = "rq:"
"""The prefix of RQ's owners, if keys are shared."""

_logger = logging.getLogger("taskguard")


def map_in_hand() -> Any:
    """The request of the `map` or `starmap` job whose body is running, if any."""
    task = get_current_task()
    return task.request if task is not None and task.name in _MAPS else None


def is_celery_task(owner: str) -> bool:
    """Whether the owner is a Celery task, with a result to wait for: not an item of a map, not an RQ job."""
    return _ITEM not in owner and not owner.startswith(_OF_RQ)


def run_item(task: Any, of: Any, args: Any, kwargs: Any) -> Any:
    """Run the body of *task* for the next item of the map *of*; or return the holder's outcome."""
    guarded: TaskGuard = task.taskguard
    guard, settings, policy = guarded.app_guard.guard, guarded.app_guard.settings, guarded.policy
    index = getattr(of, _COUNT, 0)
    setattr(of, _COUNT, index + 1)
    owner, key = f"{of.id}{_ITEM}{index}", guarded.keys(args, kwargs)
    name, _ = known_by(key, owner, is_reused=policy.on_done != "rerun")
    body, on_error = partial(task.run, *args, **kwargs), settings.on_store_error
    # It replaces a holder that is only queued, which may be queued behind this very job.
    claim = guard.new_claim(run_of(policy, key, owner), owner, policy, replace_queued=True)
    # It cannot be deferred: it waits for the store in place.
    outlasts: Outlasts = "never" if of.is_eager else "always" if on_error == "retry" else "once_held"
    claiming = Claiming(guard, policy, claim, idempotency_key=name, outlasts=outlasts)
    try:
        work = claiming.obtain()
    except StoreError as error:
        is_outage = isinstance(error, StoreUnavailableError)
        if on_error != "run_unguarded" or claiming.was_held or not is_outage:
            raise
        _logger.warning("%s[%s] runs unguarded: %s", task.name, owner, error)
        with UnguardedFence(claim.key, owner, name, effects_of(policy, owner, name)):
            return body()
    if isinstance(work, Completed):
        if work.how == "failed":
            raise failure_of(guarded.app_guard.outcomes, work)
        return value_of(guarded.app_guard.outcomes, work)
    if not of.is_eager:
        work.patience = settings.patience_at_the_end
    try:
        return run_claimed(work, body, matters=on_error != "run_unguarded")
    except StaleFenceError:
        guard.raise_tokens(work.lease.key, work.next_floor, policy)
        raise
