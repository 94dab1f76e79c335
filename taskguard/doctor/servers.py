"""Checks the settings of the store's server: eviction, persistence, replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from taskguard.doctor.finding import Finding, Patient
from taskguard.errors import StoreError, StoreUnavailableError
from taskguard.runtime.evictions import PROBLEM, WAY_OUT, Eviction
from taskguard.stores.memory import MemoryStore

Check = Callable[[Patient], Iterator[Finding]]


def shows_settings(patient: Patient) -> Iterator[Finding]:
    """A Redis user may lack the right to call INFO, for example with -@dangerous."""
    try:
        _ask_info(patient)
    except StoreUnavailableError:
        raise
    except StoreError as error:
        yield Finding(
            "TG109",
            "warning",
            repr(patient.store),
            f"it does not answer INFO ({error.problem}): the doctor cannot check eviction, persistence and replication",
            "run the doctor as a user with +info +config|get; or check TG101 to TG104 by hand and use --ignore TG109",
        )


def evicts(patient: Patient) -> Iterator[Finding]:
    """Redis may evict entries when memory is short; the volatile-* policies do too, since every entry expires."""
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
    """What the store forgets when it restarts."""
    info = _info(patient)
    if info and info.get("aof_enabled") == "0":
        if _config(patient, "save"):
            yield Finding(
                "TG103",
                "warning",
                repr(patient.store),
                "Redis only takes snapshots: a restart forgets every write since the last one, and a job that ended in "
                "that time runs again if the broker redelivers its message",
                "set appendonly yes",
            )
        else:
            yield Finding(
                "TG102",
                "error",
                repr(patient.store),
                "Redis writes nothing to disk: after a restart every key is free and every record is gone",
                "set appendonly yes",
            )
    elif info and _config(patient, "appendfsync") == "no":
        yield Finding(
            "TG103",
            "warning",
            repr(patient.store),
            "appendfsync is no: a crash of the machine loses about the last half minute of writes",
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
    """Replicas may lack a write that the server has acknowledged."""
    info = _info(patient)
    if info.get("connected_slaves", "0") != "0" and "min_slaves_good_slaves" not in info:
        yield Finding(
            "TG104",
            "warning",
            repr(patient.store),
            f"Redis has {info['connected_slaves']} replica(s) and acknowledges a write that none of them has: after a "
            "failover two holders of one key can overlap (with fence.protect your database still accepts only the "
            "newer holder's writes)",
            "set min-replicas-to-write 1, which makes an overlap rare; protect work that must not overlap with "
            "fence.once or fence.protect, or use a store that survives a failover",
        )
    standbys = _standbys(patient)
    if standbys and (not _setting(patient, "synchronous_standby_names") or _commits_alone(patient)):
        yield Finding(
            "TG104",
            "warning",
            repr(patient.store),
            f"PostgreSQL has {standbys} standby server(s) and acknowledges a write that none of them has: after a "
            "failover two holders of one key can overlap (with fence.protect your database still accepts only the "
            "newer holder's writes)",
            "set synchronous_standby_names, with synchronous_commit = on; or protect work that must not overlap with "
            "fence.once or fence.protect",
        )


def is_shared(patient: Patient) -> Iterator[Finding]:
    """A store in the memory of one process guards only that process."""
    if isinstance(patient.store, MemoryStore):
        yield Finding(
            "TG106",
            "error",
            repr(patient.store),
            "entries are in the memory of one process: each child of a prefork worker and each caller has its own, and "
            "they do not exclude each other",
            'set a store that all of them can reach: taskguard_store = "redis://…", "postgresql://…", or on one host '
            '"sqlite:///…"',
        )


CHECKS: tuple[Check, ...] = (shows_settings, evicts, persists, replicates, is_shared)


def _info(patient: Patient) -> dict[str, str]:
    """The reply to INFO for Redis; empty for any other store, and if the server refuses."""
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
    """The eviction policy of the store's server; empty if it does not evict, and if the server refuses to say."""
    ask: Any = getattr(patient.store, "eviction_policy", None)
    return "" if ask is None else Eviction().learn(ask)


def _config(patient: Patient, name: str) -> str:
    """A setting of Redis; its default if the server refuses to say."""
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
