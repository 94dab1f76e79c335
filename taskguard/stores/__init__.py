"""The stores, and the types to write one. A store is imported when its URL is opened; no driver is required."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from taskguard.errors import ConfigurationError, StoreError
from taskguard.lazily import lazily
from taskguard.protocol.names import check_namespace
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease, Store

if TYPE_CHECKING:
    from taskguard.history import History
    from taskguard.protocol.rules import Rules
    from taskguard.stores.memory import MemoryStore
    from taskguard.stores.postgresql import PostgresStore
    from taskguard.stores.redis import RedisStore
    from taskguard.stores.sqlite import SQLiteStore

__all__ = [
    "Claim",
    "Claimant",
    "Completed",
    "Ending",
    "Entry",
    "Guarantees",
    "Held",
    "History",
    "Lease",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "Rules",
    "SQLiteStore",
    "Store",
    "open_store",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "taskguard.history": "History",
        "taskguard.protocol.rules": "Rules",
        "taskguard.stores.memory": "MemoryStore",
        "taskguard.stores.postgresql": "PostgresStore",
        "taskguard.stores.redis": "RedisStore",
        "taskguard.stores.sqlite": "SQLiteStore",
    },
)

_STORES = {
    # scheme: (module, the extra that brings its driver)
    "memory": ("memory", ""),
    "sqlite": ("sqlite", ""),
    "redis": ("redis", "redis"),
    "rediss": ("redis", "redis"),
    "redis+socket": ("redis", "redis"),
    "unix": ("redis", "redis"),
    "valkey": ("redis", "redis"),
    "valkeys": ("redis", "redis"),
    "postgresql": ("postgresql", "postgresql"),
    "postgres": ("postgresql", "postgresql"),
}


def open_store(url: str, *, namespace: str = "taskguard") -> Store:
    """Open the store that *url* names.

    Apps that share a server use different namespaces.
    """
    scheme = url.partition("://")[0].lower() if isinstance(url, str) else ""
    try:
        urlsplit(url)
    except (ValueError, AttributeError):
        scheme = ""
    if scheme not in _STORES:
        given = safe_url(str(url)) if "://" in str(url) else "a text without ://"  # which may be a password
        raise ConfigurationError(
            f"{given} is not a store URL; write one that begins with " + ", ".join(f"{name}://" for name in _STORES)
        )
    check_namespace(namespace)
    module_name, extra = _STORES[scheme]
    try:
        module = import_module(f"{__name__}.{module_name}")
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith(__name__):
            raise
        raise StoreError(
            f"{scheme}://", f"needs the package {error.name}: pip install 'celery-taskguard[{extra}]'"
        ) from error
    return cast(Store, module.from_url(url, namespace=namespace))


def safe_url(url: str) -> str:
    """The URL without user name, password and options, which may hold secrets: safe to log."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "(not a URL)"
    address, _, options = rest.partition("?")
    if "@" in options and "@" not in address:  # the apparent options may be the end of a password
        return f"{scheme}://…"
    return f"{scheme}://{address.rpartition('@')[2]}"
