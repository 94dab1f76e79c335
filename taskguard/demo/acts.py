"""The four acts. Each shows what it does as it happens, and records which effects must exist at the end."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from redis import Redis

from taskguard.demo import scene
from taskguard.demo.ledger import Line
from taskguard.demo.score import Row
from taskguard.demo.screen import Screen
from taskguard.demo.stage import Stage
from taskguard.runtime.switch import is_off

CALLERS = 4
FIRST, SECOND, PARCELS = "worker-1", "worker-2", "rq-worker"
BEATS = ("beat-1", "beat-2")


class Play:
    def __init__(self, stage: Stage, screen: Screen) -> None:
        from taskguard.demo import app, jobs  # they read the environment that the stage sets

        self._stage = stage
        self._screen = screen
        self._ledger = stage.ledger
        self._app = app
        self._jobs = jobs
        self._expected: list[tuple[str, list[str], bool]] = []

    def start_workers(self) -> None:
        self._start(FIRST)
        self._start(SECOND)
        self._stage.start_rq_worker(PARCELS, self._jobs.QUEUE)
        self._stage.wait_until_ready(FIRST, SECOND, PARCELS)
        self._screen.say(f"ready: Celery {FIRST} and {SECOND} (prefork), {PARCELS}")

    def _start(self, name: str) -> None:
        # Only one worker reads the bank's queue, so that the demo knows which to stop. Then the other one reads it.
        queues = f"{self._app.SHOP},{self._app.BANK}" if name == FIRST else self._app.SHOP
        self._stage.start_celery_worker(name, queues)

    def rows(self) -> list[Row]:
        effects = self._ledger.effects()
        return [Row.of(act, effects, names, is_guarded=guarded) for act, names, guarded in self._expected]

    def _expect(self, act: str, *names: str, is_guarded: bool = True) -> None:
        self._expected.append((act, list(names), is_guarded))

    def _begun(self, order: str, n: int = 1) -> Line:
        """The *n*th body of that order, once it has started."""
        what = f"{order} to start" if n == 1 else f"the lease of {order} to expire and its message to be redelivered"
        lines = self._stage.wait_until(lambda: self._ledger.story("begin", order)[n - 1 :], what)
        return lines[0]

    def _bank_answers(self, order: str) -> None:
        self._ledger.log("answer", order)

    def _effect(self, order: str, n: int = 1) -> None:
        self._stage.wait_until(lambda: self._ledger.effects()[order] >= n, f"the charge of {order}")

    # -- 1 -----------------------------------------------------------------------------------------------------------

    def many_calls(self) -> None:
        pace, order = self._stage.pace, "order-1"
        self._screen.act(1, f"{pace.calls} calls, one run", f"{CALLERS} threads call charge.delay at the same time")
        handles = self._call(pace.calls, lambda: self._app.charge.delay(order))
        line = self._begun(order)
        self._screen.say(f"{line.worker} runs it under token {line.token}")
        duplicates = sum(handle.taskguard.duplicate for handle in handles)
        published = len(handles) - duplicates
        self._screen.say(f"{len(handles)} calls: {published} published, {duplicates} got its handle")
        self._bank_answers(order)
        results = {handle.get(timeout=60) for handle in (handles[0], handles[-1])}
        ids = len({handle.id for handle in handles})
        self._screen.say(f"job ids: {ids}, results: {len(results)}", good=ids == len(results) == 1)
        self._expect("1  duplicate calls, Celery", order)

        parcel = "parcel-1"
        with Redis.from_url(scene.url()) as connection:
            from taskguard.rq import GuardedQueue

            queue = GuardedQueue(self._jobs.QUEUE, connection=connection)
            jobs = self._call(pace.rq_calls, lambda: queue.enqueue(self._jobs.ship, parcel))
        line = self._begun(parcel)
        self._bank_answers(parcel)
        self._effect(parcel)
        ids = len({job.id for job in jobs})
        self._screen.say(f"the same with RQ: {len(jobs)} calls, job ids: {ids}, run by {line.worker}", good=ids == 1)
        self._expect("1  duplicate calls, RQ", parcel)
        self._stage.breathe()

    def _call(self, times: int, call: Callable[[], Any]) -> list[Any]:
        numbers, made = iter(range(times)), deque[Any]()

        def work() -> None:
            for _ in numbers:
                try:
                    made.append(call())
                except Exception as error:
                    made.append(error)

        # Not a pool: at Ctrl-C a pool waits for its threads, which wait for a server that is gone.
        for _ in range(CALLERS):
            threading.Thread(target=work, daemon=True).start()
        self._stage.wait_until(lambda: self._have_called(made, times), "the calls")
        for error in filter(_is_error, made):
            raise error
        return list(made)

    def _have_called(self, made: deque[Any], times: int) -> bool:
        self._screen.progress(len(made), times)
        return len(made) == times

    # -- 2 -----------------------------------------------------------------------------------------------------------

    def killed(self) -> None:
        order = "order-2"
        self._screen.act(2, "A worker is killed mid-job", "kill -9: it can neither clean up nor notify anybody")
        self._app.charge.delay(order)
        first = self._begun(order)
        self._screen.say(f"{first.worker} (pid {first.pid}) charges under token {first.token}")
        self._stage.breathe()
        self._stage.children[first.worker].kill()
        at = time.monotonic()
        self._screen.say(f"{first.worker} and all its processes are killed", good=False)
        self._expect("2  a worker killed", order)
        if is_off():
            self._screen.say("nobody takes over: the broker waits an hour for the acknowledgement", good=False)
            self._start(first.worker)
            return
        second = self._begun(order, 2)
        waited = time.monotonic() - at
        self._screen.say(f"{second.worker} (pid {second.pid}) takes over under token {second.token}")
        self._stage.breathe()
        self._bank_answers(order)
        self._effect(order)
        is_higher = second.token > first.token
        words = (
            f"taken over {waited:.1f} s after the kill, under a {'' if is_higher else 'NOT '}higher token, and charged"
        )
        self._screen.say(words, good=is_higher)
        self._start(first.worker)
        self._stage.breathe()

    # -- 3 -----------------------------------------------------------------------------------------------------------

    def stopped(self) -> None:
        guarded, plain = "order-3", "order-4"
        self._screen.act(3, "A worker is stopped past its lease, and wakes", "next to it, the same without taskguard")
        self._stage.wait_until_ready(FIRST, SECOND)
        self._screen.beside("", "with taskguard", "without")
        self._app.charge_fenced.delay(guarded)
        self._app.charge_plain.delay(plain)
        first, _ = self._begun(guarded), self._begun(plain)
        self._screen.beside(FIRST, f"token {first.token}", "starts")
        self._stage.breathe()
        self._stage.children[FIRST].stop()
        self._screen.beside(FIRST, "is stopped (SIGSTOP)", "is stopped")
        self._stage.wait_until(self._serve_the_bank, f"{SECOND} to read its queue too")
        self._redeliver(self._stage.pace.redelivery)
        second, _ = self._begun(guarded, 2), self._begun(plain, 2)
        self._screen.beside(SECOND, f"token {second.token}", "runs it again")
        self._bank_answers(guarded)
        self._bank_answers(plain)
        self._effect(guarded)
        self._effect(plain)
        self._screen.beside(SECOND, "charges", "charges")
        self._stage.breathe()
        self._stage.children[FIRST].wake()
        self._screen.beside(FIRST, "wakes, tries to charge", "wakes, tries to charge")
        refusal = self._stage.wait_until(lambda: self._ledger.story("refused", guarded), "the refusal")[0]
        self._effect(plain, 2)
        self._screen.beside(FIRST, "is refused", "charges a second time", outcome=True)
        self._screen.say(refusal.detail)
        self._expect("3  a worker stopped", guarded)
        self._expect("3  the same without taskguard", plain, is_guarded=False)
        self._stage.breathe()

    def _serve_the_bank(self) -> Any:
        return self._app.app.control.add_consumer(self._app.BANK, destination=[f"{SECOND}@demo"], reply=True, timeout=5)

    def _redeliver(self, wait: float) -> None:
        """Redeliver what nobody has acknowledged, as a Redis broker does by itself after an hour."""
        with self._app.app.connection_for_read() as connection:
            channel = connection.default_channel
            found = channel.client.hgetall(channel.unacked_key)
            tags = [tag.decode() for tag, text in found.items() if json.loads(text)[2] == self._app.BANK]
            time.sleep(wait)
            for tag in tags:
                channel.qos.restore_by_tag(tag)

    # -- 4 -----------------------------------------------------------------------------------------------------------

    def two_beats(self) -> None:
        self._screen.act(4, "Two beats, one tick each", "no leader: both reach each slot, one publishes")
        for name in BEATS:
            self._stage.start_beat(name)
        self._stage.wait_until_ready(*BEATS)
        first = int(time.time()) + 2
        slots = [f"tick {first + number}" for number in range(self._stage.pace.ticks)]
        for slot in slots:
            self._effect(slot)
            at = time.strftime("%H:%M:%S", time.localtime(int(slot.split()[1])))
            runs = self._ledger.effects()[slot]
            self._screen.say(f"slot {at}: {runs} run", good=runs == 1)
        # If a message was published twice, its second copy arrives within this time.
        time.sleep(1.0)
        self._expect(f"4  two beats, {len(slots)} slots", *slots)


def _is_error(answer: Any) -> bool:
    return isinstance(answer, Exception)
