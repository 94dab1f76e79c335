"""Which commands write, and to which keys. The driver's own methods build them and parse their replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import redis
from redis.commands import CoreCommands

from taskguard.errors import ConfigurationError

_ON_ONE_KEY = """
append decr decrby expire expireat geoadd getdel getex getset hdel hincrby hincrbyfloat hset hsetnx incr incrby
incrbyfloat linsert lpop lpush lpushx lrem lset ltrim persist pexpire pexpireat pfadd psetex rpop rpush rpushx sadd set
setbit setex setnx setrange spop srem xadd xdel xtrim zadd zincrby zpopmax zpopmin zrem zremrangebylex zremrangebyrank
zremrangebyscore
"""
_ON_TWO_KEYS = "lmove rename renamenx rpoplpush smove"
_ON_ALL_KEYS = "delete unlink"
_READING = """
bitcount bitpos dump exists get getbit getrange hexists hget hgetall hkeys hlen hmget hscan hscan_iter hstrlen hvals
lindex llen lpos lrange mget pfcount pttl scard sismember smembers smismember srandmember sscan sscan_iter strlen ttl
type xlen xrange xrevrange zcard zcount zrange zrangebyscore zrank zrevrange zrevrank zscan zscan_iter zscore
"""

# Which words of a command are its keys. Use `execute` for a command that is in neither table.
_WRITES = {
    **dict.fromkeys(_ON_ONE_KEY.split(), slice(1, 2)),
    **dict.fromkeys(_ON_TWO_KEYS.split(), slice(1, 3)),
    **dict.fromkeys(_ON_ALL_KEYS.split(), slice(1, None)),
}
READS = frozenset(_READING.split())


class Command(NamedTuple):
    """A write that is built but not sent."""

    words: tuple[Any, ...]
    options: dict[str, Any]
    keys: tuple[bytes, ...]


class _Builder(CoreCommands):
    """The driver's own methods, which here build a command without sending it."""

    def execute_command(self, *words: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return words, options


_build = _Builder()  # type: ignore[abstract]


class Writes:
    """The driver's methods that write, by their own names and with their own arguments."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        where = _WRITES.get(name)
        if where is None:
            raise AttributeError(
                f"{name} is not a known write; for a write to given keys call execute({name.upper()!r}, key, …), and "
                "for a command that needs no fence use the client itself"
            )

        def write(*args: Any, **kwargs: Any) -> Any:
            words, options = getattr(_build, name)(*args, **kwargs)
            return self._take(Command(words, options, tuple(map(as_bytes, words[where]))))

        return write

    def execute(self, command: str, *args: Any, keys: int = 1) -> Any:
        """Run any command that writes; the first *keys* of its arguments are keys."""
        if keys < 1 or len(args) < keys:
            raise ConfigurationError(f"{command}: pass the keys that it writes as its first arguments")
        return self._take(Command((*command.split(), *args), {}, tuple(map(as_bytes, args[:keys]))))

    def _take(self, command: Command) -> Any:
        raise NotImplementedError


# Inside a script replies have the form of protocol 2, whichever protocol the client uses.
_parsers = redis.Redis(protocol=2).response_callbacks


def parsed(command: Command, reply: Any) -> Any:
    """The reply as the driver's own method returns it."""
    parser = _parsers.get(command.words[0])  # type: ignore[no-untyped-call]
    options = {name: value for name, value in command.options.items() if name != "keys"}
    return parser(reply, **options) if parser else reply


def as_bytes(name: Any) -> bytes:
    return name if isinstance(name, bytes) else str(name).encode()
