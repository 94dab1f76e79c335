"""What is explored: who is there, and what may go wrong."""

from __future__ import annotations

from dataclasses import replace

from tests.model.world import Config, Fault

EVERYDAY: frozenset[Fault] = frozenset({"crash", "pause", "lost", "redeliver", "kill"})


def faults(*names: Fault) -> frozenset[Fault]:
    return frozenset(names)


WHOLE: dict[str, Config] = {
    "main": Config(faults=EVERYDAY, budget=3),
    "retry": Config(faults=EVERYDAY, budget=1, retries=1, failures=1),
    "one job": Config(faults=EVERYDAY, budget=4, jobs=1, retries=1, failures=1),
    "three jobs": Config(faults=EVERYDAY, budget=1, jobs=3),
    "three workers": Config(faults=EVERYDAY, budget=3, jobs=1, workers=3, shared_tags=True),
    "not put back": Config(faults=EVERYDAY, budget=2, requeues_lost=False),
    "wait": Config(faults=EVERYDAY, budget=2, policy="wait"),
    "replace": Config(faults=EVERYDAY | {"publisher"}, budget=1, payloads_differ=True),
    "reuse": Config(faults=EVERYDAY, budget=2, reuse="anything", failures=1),
    "reuse success": Config(faults=EVERYDAY, budget=2, reuse="success", failures=1),
    "publisher": Config(
        faults=faults("publisher", "published", "refuse", "lost", "crash", "backlog"), budget=2, called_again=True
    ),
    "revoke": Config(faults=faults("revoke", "crash", "redeliver", "kill"), budget=2),
    "joiner": Config(faults=EVERYDAY | {"revoke"}, budget=2, joiners=frozenset({1})),
    "unclaimed joiner": Config(
        faults=faults("crash", "redeliver", "kill", "pause", "lost"),
        budget=2,
        bare=frozenset({1}),
        joiners=frozenset({1}),
        queue_ends=False,
    ),
    "given up": Config(faults=faults("give up", "revoke", "redeliver", "crash"), budget=4, jobs=1),
    "given up, replies lost": Config(faults=faults("give up", "revoke", "redeliver", "lost"), budget=4, jobs=1),
    "unclaimed": Config(
        faults=faults("crash", "pause", "lose", "publisher", "redeliver"),
        budget=1,
        bare=frozenset({1}),
        queue_ends=False,
        duplicates=True,
        copy_ages=True,
        copies=12,  # a lease that is lost, and its job requeued, has its publications counted anew
    ),
    "lost messages": Config(
        faults=faults("lose", "publisher"),
        budget=1,
        queue_ends=False,
        duplicates=True,
        copy_ages=True,
    ),
    "wiped": Config(faults=faults("wipe", "pause", "crash", "redeliver", "lost"), budget=2, frees_forgotten=True),
    "clock stands": Config(faults=faults("pause", "crash", "redeliver", "forget"), budget=2, ahead=False),
    "clock falls back": Config(faults=faults("wipe", "pause", "crash"), budget=2, ahead=False, floor=True),
    "clock falls back, one job": Config(
        faults=faults("wipe", "pause", "crash"), budget=2, jobs=1, ahead=False, floor=True
    ),
    "late packets": Config(faults=faults("late", "pause", "crash", "kill", "refuse"), budget=2, called_again=True),
    "poison": Config(faults=faults("redeliver", "lost"), budget=1, poison=frozenset({0}), max_starts=2),
    "revoked while it runs elsewhere": Config(
        faults=faults("revoke", "redeliver", "crash"), budget=3, jobs=1, retries=1, queue_ends=False
    ),
    "held at least": Config(faults=EVERYDAY, budget=1, failures=1, linger=True),
    "a copy is published before it is named": Config(
        faults=faults("published", "redeliver", "crash"), budget=4, jobs=1, retries=1, copy_ages=True
    ),
    "copies": Config(faults=faults("published", "lost"), budget=3, jobs=1, endless=frozenset({0}), copy_ages=True),
}
"""What each is for: README.md."""

LONG: dict[str, Config] = {
    "retry, more faults": Config(faults=EVERYDAY, budget=3, retries=1, failures=1),
    "three jobs, more faults": Config(faults=EVERYDAY, budget=2, jobs=3),
    "wait, more faults": Config(faults=EVERYDAY, budget=3, policy="wait", retries=1),
    "reuse, more faults": Config(faults=EVERYDAY, budget=3, reuse="success", failures=1),
    "publisher, more faults": Config(
        faults=faults("publisher", "published", "refuse", "lost", "crash", "redeliver", "backlog"),
        budget=3,
        called_again=True,
    ),
    "revoke, more faults": Config(faults=faults("revoke", "crash", "redeliver", "kill"), budget=3, retries=1),
    "joiner, more faults": Config(
        faults=faults("crash", "pause", "redeliver", "revoke"), budget=3, joiners=frozenset({1})
    ),
    "unclaimed, more faults": Config(
        faults=faults("crash", "pause", "lose", "publisher", "redeliver"),
        budget=2,
        bare=frozenset({1}),
        queue_ends=False,
        duplicates=True,
        copy_ages=True,
    ),
    "lost messages, more faults": Config(
        faults=faults("lose", "crash", "publisher", "redeliver"),
        budget=2,
        queue_ends=False,
        duplicates=True,
        copy_ages=True,
    ),
    "wiped, more faults": Config(
        faults=faults("wipe", "pause", "crash", "redeliver", "lost"), budget=3, frees_forgotten=True
    ),
}
"""Minutes each."""

FEWER_FAULTS = {
    "main": 1,
    "one job": 2,
    "three jobs": 1,
    "three workers": 1,
    "not put back": 1,
    "reuse": 1,
    "reuse success": 1,
    "publisher": 1,
    "revoke": 1,
    "joiner": 1,
    "unclaimed joiner": 1,
    "given up": 1,
    "given up, replies lost": 1,
    "lost messages": 1,
    "wiped": 1,
    "clock stands": 1,
    "clock falls back": 1,
    "late packets": 1,
    "poison": 1,
    "revoked while it runs elsewhere": 1,
    "a copy is published before it is named": 2,
}
"""The suite explores these with so many faults less than the long runs do."""

CONFIGURATIONS: dict[str, Config] = {
    name: replace(whole, budget=whole.budget - FEWER_FAULTS.get(name, 0)) for name, whole in WHOLE.items()
}
"""Seconds each."""
LONG.update({f"{name}, all faults": WHOLE[name] for name in FEWER_FAULTS})


def covers(larger: Config, smaller: Config) -> bool:
    """Whether every world of *smaller* is one of *larger* too, with faults, retries or failures to spare."""
    counted = {"faults": frozenset[Fault](), "budget": 0, "retries": 0, "failures": 0}
    return (
        replace(larger, **counted) == replace(smaller, **counted)
        and larger.budget >= smaller.budget
        and larger.retries >= smaller.retries
        and larger.failures >= smaller.failures
        and (smaller.budget == 0 or larger.faults >= smaller.faults)
    )
