"""Renews every lease that this process holds, and reports when one is lost.

One operating system thread per store, started with the first lease. It renews each lease after a third of its time, all
that are due in one call. It never dies of an error: as long as there is a lease, it soon retries a store that fails.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Literal, TypeAlias

from taskguard.errors import LeaseLostError, StoreError, StoreUnavailableError
from taskguard.protocol.store import Lease, Store
from taskguard.runtime import interrupt
from taskguard.runtime.alarm import Alarm
from taskguard.runtime.blocks import Presence
from taskguard.runtime.clocks import DRIFT, SLACK, since_boot
from taskguard.runtime.forks import Forked, Living, watch_forks

OnLost: TypeAlias = Literal["abort", "abort_if_unsure", "continue"]
Report: TypeAlias = Callable[["Holding", Literal["lost", "unsure", "renewal_failed"], str], None]

RENEWALS_PER_LEASE = 3
ALMOST_DUE = 0.1
"""Leases that are due within this fraction of their length are renewed in the same call."""
RETRY_AFTER = 0.1
"""A failed renewal is retried after about this fraction of the time between two renewals."""
SHORTEST_RENEWAL = 0.01


class Holding:
    """A lease that this process holds: how long it is certainly valid, and whether it is lost."""

    def __init__(
        self,
        lease: Lease,
        *,
        seconds: float,
        asked: float,
        on_lost: OnLost = "abort",
        at_most: float | None = None,
        body: interrupt.Body | None = None,
    ) -> None:
        self.lease = lease
        self.seconds = seconds
        self.on_lost = on_lost
        self.body = body
        self.process = os.getpid()
        self.presences: tuple[Presence, ...] | None = None
        """The blocks for which it is held. None: it is held as long as anything refers to it."""
        self.lost = False
        self.settling = False
        self.stop_at = asked + at_most if at_most is not None else None
        self.renewed(asked, seconds)

    def period(self, now: float) -> float:
        """For how long to renew it: never beyond hold_at_most."""
        return self.seconds if self.stop_at is None else min(self.seconds, self.stop_at - now)

    def renewed(self, asked: float, seconds: float) -> None:
        self.valid_until = asked + seconds * (1 - DRIFT) - SLACK  # counted from before the request left
        self.renew_at = asked + seconds / RENEWALS_PER_LEASE
        self.reported_unsure = False
        self.reported_failed = False

    def failed(self, now: float) -> None:
        pause = self.seconds / RENEWALS_PER_LEASE * RETRY_AFTER
        self.renew_at = now + random.uniform(0.5, 1.5) * min(pause, 1.0)

    @property
    def is_of_this_process(self) -> bool:
        return os.getpid() == self.process

    @property
    def is_deserted(self) -> bool:
        """The blocks for which it was held are over, and none of them completed its end."""
        if self.presences is None:
            return False
        for presence in self.presences:  # noqa: SIM110 - a generator costs more than all the rest
            if presence() is not None:
                return False
        return True

    def join(self, presence: Presence) -> None:
        """Hold it for this block too."""
        known = self.presences or ()
        self.presences = (*[other for other in known if other() is not None], presence)

    def part(self, presence: Presence | None) -> None:
        """That block has ended, even if the object behind its presence lives on (say, a manager that is kept)."""
        if self.presences is not None:
            self.presences = tuple([other for other in self.presences if other is not presence])

    def is_held_beside(self, presence: Presence | None) -> bool:
        """Whether it is held for another block besides this one."""
        return any(other is not presence and other() is not None for other in self.presences or ())

    @property
    def remaining(self) -> float:
        return self.valid_until - since_boot()

    @property
    def unsure(self) -> bool:
        return not self.lost and self.remaining <= 0

    def lose(self) -> None:
        """The store says that the lease is lost. Interrupts the body at once, unless on_lost is "continue"."""
        self.lost = True
        if self.on_lost != "continue" and self.body is not None and not self.is_deserted:
            self.body.interrupt(LeaseLostError(self.lease.key, self.lease.token))

    def doubt(self) -> None:
        """The lease has expired and the store does not answer."""
        self.reported_unsure = True
        if self.on_lost == "abort_if_unsure" and self.body is not None and not self.is_deserted:
            self.body.interrupt(LeaseLostError(self.lease.key, self.lease.token, True))


class Heartbeat(Forked):
    """The renewal of all leases on one store."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store = store
        self._report = report
        self.on_renewal: Callable[[], None] = lambda: None
        """Called when leases are renewed: some work has lasted for a third of its lease."""
        self._begin()
        watch_forks(self)

    def after_fork(self) -> None:
        # The parent's own thread continues to renew the parent's leases. If it never had one, this object is still
        # unused, and a child that lives for one job need not set it up again.
        if self._is_used:
            self._begin()

    def _begin(self) -> None:
        self._is_used = False
        # Weak references: if a signal interrupts the end of a holder, its lease is not renewed for ever.
        self._holdings: Living[Holding] = Living()
        self._renewer = Alarm(self._renew_due, self._next_renewal)
        self._doubter = Alarm(self._doubt_due, self._next_doubt)

    def add(self, holding: Holding) -> None:
        self._is_used = True  # first: another thread may fork at any point
        self._holdings.add(holding)
        self._renewer.ring_by(holding.renew_at)
        if holding.on_lost == "abort_if_unsure":
            # In its own thread, since the renewer may be waiting for a store that does not answer.
            self._doubter.ring_by(holding.valid_until)

    def drop(self, holding: Holding) -> None:
        if not self._is_used:
            return  # a claim whose body never began
        self._holdings.discard(holding)

    def renew_now(self, holding: Holding) -> None:
        """Renew this one lease from the calling thread; raises if the store is unavailable."""
        self._renew([holding])

    def _all(self) -> list[Holding]:
        held = []
        for holding in self._holdings.all():
            if holding.is_deserted:
                self._holdings.discard(holding)  # no block runs: the lease expires by itself
                holding.lost = True
            elif not holding.lost:
                held.append(holding)
        return held

    # -- renewing ------------------------------------------------------------------------------------------------

    def _next_renewal(self) -> float | None:
        return min((holding.renew_at for holding in self._all()), default=None)

    def _renew_due(self, now: float) -> None:
        due = []
        for holding in self._all():
            if holding.stop_at is not None and holding.stop_at - now <= SHORTEST_RENEWAL:
                self._let_go(holding, now)
            elif holding.renew_at <= now + holding.seconds * ALMOST_DUE:
                due.append(holding)
        if due:
            self._try_to_renew(due)
            self.on_renewal()

    def _try_to_renew(self, due: list[Holding]) -> None:
        try:
            self._renew(due)
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreUnavailableError) and len(due) > 1:
                # The store answered, and one of the keys is the cause: the others must still be renewed.
                for holding in due:
                    self._try_to_renew([holding])
                return
            now = since_boot()
            for holding in due:
                self._failed(holding, now, str(error))

    def _failed(self, holding: Holding, now: float, problem: str) -> None:
        holding.failed(now)
        if not holding.reported_failed:  # once per outage
            holding.reported_failed = True
            self._report(holding, "renewal_failed", problem)
        if holding.unsure and not holding.reported_unsure:
            self._report(holding, "unsure", problem)
            holding.doubt()

    def _renew(self, due: list[Holding]) -> None:
        asked = since_boot()
        periods = [holding.period(asked) for holding in due]
        answers = self._store.renew([(h.lease, period) for h, period in zip(due, periods, strict=True)])
        for holding, period, answer in zip(due, periods, answers, strict=True):
            if answer:
                holding.renewed(asked, period)
            elif self._still_held(holding):
                self._report(holding, "lost", "")  # before the body is interrupted: it may run in this thread
                holding.lose()

    def _still_held(self, holding: Holding) -> bool:
        # It may have ended while the request was on its way: then "no" is not a loss.
        return holding in self._holdings and not holding.settling

    def _let_go(self, holding: Holding, now: float) -> None:
        """It was held for hold_at_most: do not renew it; it is lost when it expires."""
        if now < holding.valid_until:
            holding.renew_at = holding.valid_until
            return
        self._report(holding, "lost", "it was held as long as hold_at_most allows")
        holding.lose()

    # -- doubting ------------------------------------------------------------------------------------------------

    def _doubtful(self) -> list[Holding]:
        return [h for h in self._all() if h.on_lost == "abort_if_unsure" and not h.reported_unsure]

    def _next_doubt(self) -> float | None:
        return min((holding.valid_until for holding in self._doubtful()), default=None)

    def _doubt_due(self, now: float) -> None:
        for holding in self._doubtful():
            if holding.valid_until <= now:
                self._report(holding, "unsure", "the store did not answer in time")
                holding.doubt()
