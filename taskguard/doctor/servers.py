"""What the server of the store is set to: eviction, persistence, replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from taskguard.doctor.finding import Finding, Patient
from taskguard.errors import StoreError, StoreUnavailableError
from taskguard.runtime.evictions import PROBLEM, WAY_OUT, Eviction
from taskguard.stores.memory import MemoryStore

Check = Callable[[Patient], Iterator[Finding]]


def tells(patient: Patient) -> Iterator[Finding]:
    """A user without rights for INFO, as rules against dangerous commands leave it."""
    try:
        _ask_info(patient)
    except StoreUnavailableError:
        raise
    except StoreError as error:
        yield Finding(
            "TG109",
            "warning",
            repr(patient.store),
            f"it does not answer INFO ({error.problem}): whether it evicts, persists and replicates is not known",
            "let the doctor ask as a user who may (+info +config|get); or look for TG101 to TG104 by hand, and leave "
            "this finding out with --ignore TG109",
        )


def evicts(patient: Patient) -> Iterator[Finding]:
    """Redis may throw an entry away when memory is short: all of them have an end, so the volatile-* policies too."""
    policy = _eviction_policy(patient)
    if policy:
        yield Finding(
            "TG101",
            "error",
            repr(patient.store),
            f"maxmemory-policy is {policy}: {PROBLEM}",
            WAY_OUT,
        )


def persists(patient: Patient) -> Iterator[Finding]:
    """What a restart leaves."""
    info = _info(patient)
    if info and info.get("aof_enabled") == "0":
        if _config(patient, "save"):
            yield Finding(
                "TG103",
                "warning",
                repr(patient.store),
                "Redis keeps snapshots only: a restart forgets what was decided since the last one, and a job that "
                "ended in that time runs again if its message comes back",
                "set appendonly yes",
            )
        else:
            yield Finding(
                "TG102",
                "error",
                repr(patient.store),
                "Redis keeps nothing on disk: after a restart every key is free and every end forgotten",
                "set appendonly yes",
            )
    elif info and _config(patient, "appendfsync") == "no":
        yield Finding(
            "TG103",
            "warning",
            repr(patient.store),
            "appendfsync is no: a crash of the machine forgets about half a minute",
            "set appendfsync everysec, or always",
        )
    if _setting(patient, "fsync") == "off":
        yield Finding(
            "TG102",
            "error",
            repr(patient.store),
            "PostgreSQL runs with fsync = off: a crash of the machine may destroy the whole database",
            "set fsync = on",
        )


def replicates(patient: Patient) -> Iterator[Finding]:
    """Replicas that need not have a write before it is acknowledged."""
    info = _info(patient)
    if info.get("connected_slaves", "0") != "0" and "min_slaves_good_slaves" not in info:
        yield Finding(
            "TG104",
            "warning",
            repr(patient.store),
            f"Redis has {info['connected_slaves']} replica(s), none of which must have a write: after a fail-over two "
            "holders of one key can overlap (their tokens still rise, and the fence decides)",
            "set min-replicas-to-write 1, which makes it seldom; keep work that must not overlap behind fence.once or "
            "fence.protect, or on a store that survives a fail-over",
        )
    standbys = _standbys(patient)
    if standbys and (not _setting(patient, "synchronous_standby_names") or _commits_alone(patient)):
        yield Finding(
            "TG104",
            "warning",
            repr(patient.store),
            f"PostgreSQL has {standbys} standby server(s), none of which must have a write: after a fail-over two "
            "holders of one key can overlap (their tokens still rise, and the fence decides)",
            "set synchronous_standby_names, with synchronous_commit = on; or keep work that must not overlap behind "
            "fence.once or fence.protect",
        )


def is_shared(patient: Patient) -> Iterator[Finding]:
    """A store in the memory of one process guards that process."""
    if isinstance(patient.store, MemoryStore):
        yield Finding(
            "TG106",
            "error",
            repr(patient.store),
            "entries are in the memory of one process: each child of a prefork worker, and each caller, has its own, "
            "and nothing is guarded between them",
            'name a store that all of them can reach: taskguard_store = "redis://…", "postgresql://…", or on one host '
            '"sqlite:///…"',
        )


CHECKS: tuple[Check, ...] = (tells, evicts, persists, replicates, is_shared)


def _info(patient: Patient) -> dict[str, str]:
    """What INFO says, for Redis; empty for any other store, and for one that does not tell."""
    try:
        return _ask_info(patient)
    except StoreUnavailableError:
        raise
    except StoreError:
        return {}


def _ask_info(patient: Patient) -> dict[str, str]:
    execute: Any = getattr(patient.store, "execute", None)
    if execute is None:
        return {}
    lines = execute(b"INFO").decode().splitlines()
    return dict(line.partition(":")[::2] for line in lines if ":" in line)


def _eviction_policy(patient: Patient) -> str:
    """How the store's server evicts; empty if it does not, and of one that does not tell."""
    ask: Any = getattr(patient.store, "eviction_policy", None)
    return "" if ask is None else Eviction().learn(ask)


def _config(patient: Patient, name: str) -> str:
    """A setting of Redis; of a server that does not tell, what it usually is."""
    execute: Any = patient.store.execute  # type: ignore[attr-defined]
    try:
        reply = execute(b"CONFIG", b"GET", name)
    except StoreUnavailableError:
        raise
    except StoreError:
        return {"save": "3600 1", "appendfsync": "everysec"}[name]
    pairs = list(reply.items()) if isinstance(reply, dict) else list(zip(reply[::2], reply[1::2], strict=True))
    return str(pairs[0][1].decode()) if pairs else ""


def _standbys(patient: Patient) -> int:
    """How many servers follow this PostgreSQL; 0 for any other store."""
    standbys: Any = getattr(patient.store, "standbys", None)
    return 0 if standbys is None else int(standbys())


def _commits_alone(patient: Patient) -> bool:
    return _setting(patient, "synchronous_commit") == "local"


def _setting(patient: Patient, name: str) -> str:
    """A setting of PostgreSQL; empty for any other store."""
    setting: Any = getattr(patient.store, "setting", None)
    return "" if setting is None else str(setting(name))
