"""What is explored: who is there, and what may go wrong."""

from __future__ import annotations

from dataclasses import replace

from tests.model.world import Config, Fault

EVERYDAY: frozenset[Fault] = frozenset({"crash", "pause", "lost", "redeliver", "kill"})


def faults(*names: Fault) -> frozenset[Fault]:
    return frozenset(names)


CONFIGURATIONS: dict[str, Config] = {
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
"""Each takes seconds, the first a minute."""

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

# The largest have one fault less in the suite, and all of theirs beside the long ones.
for _name in (
    "main",
    "late packets",
    "poison",
    "three jobs",
    "joiner",
    "publisher",
    "one job",
    "reuse",
    "reuse success",
    "revoke",
    "wiped",
    "a copy is published before it is named",
    "not put back",
    "wait",
    "lost messages",
    "three workers",
    "clock stands",
    "clock falls back",
    "given up",
):
    _whole = LONG[f"{_name}, all faults"] = CONFIGURATIONS[_name]
    CONFIGURATIONS[_name] = replace(_whole, budget=_whole.budget - 1)
