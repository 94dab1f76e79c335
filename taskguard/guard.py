"""Claim, run, complete or release: the only place that decides.

Scripts and services call `Guard.hold` and `Guard.run`. The queue integrations call the methods below them: `begin`,
which returns `Work` (the claim is granted), `Held` or `Completed`, and the methods that end a `Work`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from taskguard.engine.claiming import Claiming
from taskguard.engine.hold import Hold
from taskguard.engine.under import run_claimed
from taskguard.engine.unguarded import UnguardedFence
from taskguard.engine.work import Work
from taskguard.errors import (
    ConfigurationError,
    EarlierFailureError,
    StaleFenceError,
    StoreError,
    StoreUnavailableError,
    TooManyStartsError,
)
from taskguard.events import Event, Kind, Listener, Listeners, log
from taskguard.fence import fence_held_here
from taskguard.history import Recorder, history_of
from taskguard.keys.maker import differing
from taskguard.keys.signatures import fence_parameter, runs_later
from taskguard.protocol.names import check_claim, check_entry, check_key
from taskguard.protocol.outcomes import JsonOutcomes, Outcomes, value_of
from taskguard.protocol.policy import REUSE, Policy
from taskguard.protocol.store import Claim, Claimant, Completed, Held, Lease, Store
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.evictions import Evictions, OnEvictingStore, check_on_evicting_store
from taskguard.runtime.heartbeat import Heartbeat, Holding
from taskguard.runtime.interrupt import came_by_signal
from taskguard.runtime.outages import grace_of, holder_that_may_return
from taskguard.runtime.switch import is_off
from taskguard.runtime.whereabouts import whereabouts
from taskguard.stores import open_store

T = TypeVar("T")

PATIENCE = 10.0
"""How long to retry an unavailable store."""
HEALINGS = 3
"""How often to restart work whose token a resource refused because the store had lost its data."""


class Guard:
    """Makes work happen once, on one store."""

    def __init__(
        self,
        store: Store | str,
        *,
        namespace: str | None = None,
        patience: float = PATIENCE,
        outcomes: Outcomes | None = None,
        listeners: Iterable[Listener] = (log,),
        history: bool = True,
        on_evicting_store: OnEvictingStore = "warn",
    ) -> None:
        if isinstance(store, str):
            store = open_store(store, namespace=namespace or "taskguard")
        elif namespace is not None:
            raise ConfigurationError("namespace= goes with a URL; a store that is already open has its own namespace")
        elif not callable(getattr(store, "claim", None)):
            raise ConfigurationError(f"Guard takes a store URL or a store, not {store!r}")
        if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not patience >= 0:
            raise ConfigurationError(f"patience must be a number of seconds from 0, not {patience!r}")
        if not isinstance(history, bool):
            raise ConfigurationError(f"history must be True or False, not {history!r}")
        check_on_evicting_store("on_evicting_store", on_evicting_store)
        self.store = store
        self._evictions = Evictions(store, on_evicting_store)
        self.patience = float(patience)
        self._last_failure = float("-inf")
        """When the store last failed to answer."""
        self.outcomes: Outcomes = outcomes or JsonOutcomes()
        self.listeners = Listeners(listeners)
        kept = history_of(store) if history else None
        self.recorder = None if kept is None else Recorder(kept)
        """Writes decisions to the store's history; None if no history is kept."""
        self.heartbeat = Heartbeat(self.store, partial(_tell_of_holding, self.listeners))
        if self.recorder is not None:
            self.listeners.add(self.recorder)
            self.heartbeat.on_renewal = self.recorder.go_on

    def __repr__(self) -> str:
        return f"Guard({self.store!r})"

    def close(self) -> None:
        """Close what the store holds open."""
        if self.recorder is not None:
            self.recorder.flush()
        self.store.close()

    # -- for scripts and services ----------------------------------------------------------------------------------

    def hold(
        self,
        key: str,
        *,
        lease: float = 30.0,
        wait_up_to: float = 0.0,
        keep_for: float | None = None,
        hold_at_most: float | None = None,
        hold_at_least: float | None = None,
        on_lost: Literal["abort", "abort_if_unsure", "continue"] = "abort",
    ) -> Hold:
        """Hold *key* while the block runs, and pass the block its fence.

        Raises `DuplicateTaskError` if another owner holds the key, `WaitTimeoutError` if another owner still holds it
        after *wait_up_to* seconds, and `LeaseLostError` inside the block, or at its end, if the lease was lost. Inside
        a block that already holds the key, in the same thread or task, `hold` succeeds at once with the same fence.
        The key stays held until the last of these blocks ends.
        """
        policy = _policy(
            lease=lease,
            keep_for=keep_for,
            hold_at_most=hold_at_most,
            hold_at_least=hold_at_least,
            on_lost=on_lost,
            on_conflict="wait",
            wait_up_to=wait_up_to,
        )
        return Hold(self, check_key(key), policy)

    def run(
        self,
        key: str,
        function: Callable[..., T],
        *args: Any,
        keep_for: float,
        on_done: Literal["rerun", "reuse_success", "reuse"] = "reuse_success",
        lease: float = 30.0,
        wait_up_to: float = 3600.0,
        hold_at_most: float | None = None,
        hold_at_least: float | None = None,
        on_lost: Literal["abort", "abort_if_unsure", "continue"] = "abort",
    ) -> T:
        """Call `function(*args)` once for *key*; every later call within *keep_for* seconds gets the stored outcome.

        A call that arrives while another one runs waits for its outcome, and runs itself if there is none. The result
        is stored as JSON. If JSON cannot represent it, only the first caller gets it; later ones get
        `OutcomeNotKeptError`. If a resource refuses the run's token although no newer holder exists, the function runs
        again under a higher token.
        """
        if fence_held_here(self.store, check_key(key)) is not None:
            raise ConfigurationError(f"the calling code already holds {key}; call the function directly")
        if runs_later(function):
            raise ConfigurationError(
                f"{function!r} only begins when it is called (it is a coroutine or a generator), so its end cannot be "
                "guarded; give a plain function, or use hold() around the code that awaits it"
            )
        policy = _policy(
            lease=lease,
            keep_for=keep_for,
            on_done=on_done,
            hold_at_most=hold_at_most,
            hold_at_least=hold_at_least,
            on_lost=on_lost,
            on_conflict="wait",
            wait_up_to=wait_up_to,
        )
        name = fence_parameter(function)
        if is_off():
            with UnguardedFence(key, self.new_owner()) as fence:
                return function(*args, **({name: fence} if name else {}))
        owner, floor = self.new_owner(), 0
        known_by = key if on_done != "rerun" else owner
        for healing in range(HEALINGS + 1):
            claim = self.new_claim(key, owner, policy, floor=floor)
            work = Claiming(self, policy, claim, idempotency_key=known_by).obtain()
            if isinstance(work, Completed):
                if work.how == "failed" and work.outcome is not None:
                    raise EarlierFailureError(key, work.owner, self.outcomes.decode_error(work.outcome))
                return value_of(self.outcomes, work)  # type: ignore[no-any-return]
            try:
                return run_claimed(work, partial(function, *args, **({name: work.fence} if name else {})))
            except StaleFenceError:
                floor = work.next_floor
                if not floor or healing == HEALINGS:
                    raise
        raise AssertionError("the last round returns or raises")

    # -- the engine ------------------------------------------------------------------------------------------------

    def new_owner(self) -> str:
        """An owner name with host and process, for a holder that is not a queue's job."""
        return f"{os.uname().nodename}:{os.getpid()}:{os.urandom(6).hex()}"

    def new_claim(
        self,
        key: str,
        owner: str,
        policy: Policy,
        *,
        attempt: str = "",
        lease: float = 0.0,
        floor: int = 0,
        **rest: Any,
    ) -> Claim:
        """A claim of *owner*, under a new attempt if none is given, with the policy's lease.

        Raises ConfigurationError unless every store accepts its names and numbers.
        """
        return check_claim(
            Claim(
                key,
                owner,
                attempt or new_attempt(),
                lease=lease or policy.lease,
                keep_for=policy.keep,
                reuse=REUSE[policy.on_done],
                floor=floor,
                **rest,
            )
        )

    def begin(
        self,
        claim: Claim,
        policy: Policy,
        *,
        idempotency_key: str | None = None,
        effect_key: str | None = None,
        report: bool = True,
        again: bool = False,
    ) -> Work | Held | Completed:
        """Claim the key to run the body now.

        Raises `TooManyStartsError`, after failing the job for good, if its workers died too often. *effect_key* is the
        key under which `fence.once` records effects, if that is not the idempotency key.
        """
        asked, answer = self.ask(claim, report=report, again=again)
        if not isinstance(answer, Lease):
            return answer
        work = Work(self, policy, answer, asked, idempotency_key or claim.owner, effect_key=effect_key)
        if answer.starts > policy.max_starts:
            error = TooManyStartsError(claim.key, claim.owner, answer.starts, policy.max_starts)
            self.report("too_many_starts", answer, token=answer.token, detail=str(error))
            work.fail(error)
            raise error
        return work

    def ask(
        self,
        claim: Claim,
        *,
        report: bool = True,
        again: bool = False,
        patience: float | None = None,
        arguments: str = "",
        after_outage: bool = False,
    ) -> tuple[float, Lease | Held | Completed]:
        """The store's answer, and the time just before the answered request left.

        If a reply is lost, the guard repeats the same claim, which gets its own lease back. *again*: the listeners
        already know the holder. *arguments* become `Event.arguments`. *after_outage*: the store did not answer the last
        request for this job, whichever process made it.
        """
        claim.where = whereabouts()
        grace = grace_of(claim)
        looked = float("-inf")

        def once() -> tuple[float, Lease | Held | Completed]:
            nonlocal looked
            now = since_boot()
            # Not before each try: if every second reply is lost, only these reads would ever be answered.
            if now - looked > grace and (after_outage or now - self._last_failure < grace):
                held = holder_that_may_return(self.store, claim, grace)
                if held is not None:
                    return since_boot(), held
                looked = since_boot()
            return since_boot(), self.store.claim(claim)

        patience = self.patience if patience is None else patience
        if self._evictions.are_refused:
            self._patiently(self._evictions.refuse, claim, patience)
        asked, answer = self._patiently(once, claim, patience)
        # Not between a grant and its body: if the server stopped answering just then, the lease would expire.
        if not isinstance(answer, Lease) or answer.state == "queued":
            self._evictions.warn(self.report, claim)
        if report and not (again and isinstance(answer, Held)):
            self._tell_of_answer(claim, answer, arguments)
        return asked, answer

    def settle(self, claimant: Claimant, verb: Callable[[], bool], kind: Kind, *, patience: float = 0.0) -> bool:
        """End a claim, retrying while the store does not answer; False if the store refuses."""
        done = self._patiently(verb, claimant, max(self.patience, patience))
        self._evictions.warn(self.report, claimant)
        self.report(kind if done else "refused", claimant, token=getattr(claimant, "token", 0))
        return done

    def free(self, key: str, *, token: int = 0, by: str = "") -> bool:
        """Free *key* by hand; with *token*, only if that token is still the newest. Its holder loses the lease."""
        entry = self.store.get(check_entry(key))
        freed = self.store.forget(key, token)
        if freed:
            owner = entry.owner if entry is not None else ""
            detail = f"by hand, {by}" if by else "by hand"
            self.report("released", Claimant(key, owner, ""), token=token or getattr(entry, "token", 0), detail=detail)
        return freed

    def raise_tokens(self, key: str, floor: int, policy: Policy) -> None:
        """Make every later claim of *key* get a token above *floor*.

        Called when a resource has seen *floor* and this store, which lost its data, has issued only lower tokens. A
        holder that already has a lower token learns it from the resource.
        """
        if not floor:
            return
        with suppress(StoreError):
            asked, answer = self.ask(self.new_claim(key, self.new_owner(), policy, floor=floor), report=False)
            if isinstance(answer, Lease):
                Work(self, policy, answer, asked, answer.owner).give_up()

    def encoded(self, encode: Callable[[Any], bytes], value: Any, claimant: Claimant) -> bytes | None:
        """The outcome as bytes; None, with a `not_kept` event, if it cannot be serialized."""
        try:
            return encode(value)
        except Exception as why:  # whatever an object raises when it is serialized: the work is done all the same
            if came_by_signal(why):
                raise
            self.report("not_kept", claimant, token=getattr(claimant, "token", 0), detail=str(why))
            return None

    def report(self, kind: Kind, claimant: Claimant, **facts: Any) -> None:
        self.listeners.notify(Event(kind=kind, key=claimant.key, owner=claimant.owner, **facts))

    def _patiently(self, verb: Callable[[], T], claimant: Claimant, patience: float) -> T:
        started, waits = since_boot(), None
        while True:
            try:
                return verb()
            except StoreError as error:
                waits = waits or pauses()
                pause = next(waits)
                passing = isinstance(error, StoreUnavailableError)
                if passing:
                    self._last_failure = since_boot()
                if not passing or since_boot() + pause >= started + patience:
                    self.report("store_unavailable" if passing else "store_failed", claimant, detail=str(error))
                    raise
            time.sleep(pause)

    def _tell_of_answer(self, claim: Claim, answer: Lease | Held | Completed, arguments: str) -> None:
        if isinstance(answer, Lease):
            kind: Kind = "took_over" if answer.took_over else "claimed"
            self.report(kind, claim, token=answer.token, state=answer.state, lasts=claim.lease, arguments=arguments)
            return
        facts: dict[str, Any] = {
            "token": answer.token,
            "arguments": arguments,
            "holder": answer.owner,
            "differs": differing(claim.payload, answer.payload),
        }
        if isinstance(answer, Held):
            self.report("duplicate", claim, state=answer.state, since=answer.since, **facts)
        else:
            self.report("reused", claim, state=answer.how, since=answer.at, **facts)


def _tell_of_holding(listeners: Listeners, holding: Holding, kind: Kind, detail: str) -> None:
    # Takes the listeners and not the guard: the renewing thread must not keep the guard alive.
    lease = holding.lease
    listeners.notify(Event(kind=kind, key=lease.key, owner=lease.owner, token=lease.token, detail=detail))


def new_attempt() -> str:
    return os.urandom(12).hex()


def _policy(**options: Any) -> Policy:
    try:
        return _checked_policy(**options)
    except TypeError:  # an unhashable value is not valid for any option: let the policy say which
        return Policy.of(**options)


_checked_policy = lru_cache(maxsize=256, typed=True)(Policy.of)
