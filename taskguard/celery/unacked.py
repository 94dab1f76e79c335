"""The messages that workers fetched from a Redis broker and have not acknowledged, as kombu's transport keeps them.

kombu has a hash of them by delivery tag, and a sorted set of the tags by time of fetch (by the clock of the worker that
fetched the message, which may be wrong). We add two keys, with the broker's own time:

- *stamps*, a sorted set: when a live worker last confirmed that it has the message. If no worker has stamped it yet:
  when it was first seen here, less three seconds. It covers the messages of one of the guard's stores.
- *look*: which worker currently searches for silent messages.

Every step that changes something is one script. Sentinel's channel is the same, with another pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis import Redis

from taskguard.celery.orphans import Rescued, given_back

TIMEOUT = 1.0
"""Seconds that the worker waits for one reply of the broker: this blocks its event loop."""
LOOKS_FOR = 3.0
"""Seconds for which no other worker searches: two searches may be missed."""
SUSPECT = 3.0
"""Seconds without a stamp after which a message is watched."""
KEPT = 86400
"""Seconds after which our keys expire if no worker uses them."""
AT_ONCE = 500
"""How many messages one search covers."""
TAGS_AT_ONCE = 1000
"""How many tags one call of a script gets."""
READS = 2_000_000
"""How many bytes of messages one search reads; a larger message is read alone."""
MICROS = 1_000_000

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
"""

_STAMP = f"""
-- KEYS: stamps. ARGV: µs since they were seen, or "" if this worker has them; seconds to keep stamps; how many tags are
-- gone; these; all others.
{_NOW}
local gone = tonumber(ARGV[3])
for at = 4, 3 + gone do redis.call('ZREM', KEYS[1], ARGV[at]) end
for at = 4 + gone, #ARGV do
    if ARGV[1] == '' then redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[at])
    else redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', now - ARGV[1]), ARGV[at]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""

_LOOK = f"""
-- KEYS: look, stamps, unacked, unacked_index. ARGV: the searching worker, ms that no other one searches, µs without a
-- stamp, the first rank, how many. Returns false if another worker searches; else the time, the first rank of the next
-- search, and for each suspect its tag, its stamp, its score in kombu's index and the length of its message.
{_NOW}
local looks = redis.call('GET', KEYS[1])
if looks and looks ~= ARGV[1] then return false end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local first, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local found = redis.call('ZRANGE', KEYS[2], first, first + most - 1, 'WITHSCORES')
local answer, rank = {{string.format('%.0f', now), '0'}}, first
for at = 1, #found, 2 do
    if tonumber(found[at + 1]) > now - ARGV[3] then break end
    if redis.call('HEXISTS', KEYS[3], found[at]) == 0 then
        redis.call('ZREM', KEYS[2], found[at])
    else
        rank = rank + 1
        for _, value in ipairs({{found[at], found[at + 1], redis.call('ZSCORE', KEYS[4], found[at]) or '',
                                redis.call('HSTRLEN', KEYS[3], found[at])}}) do
            answer[#answer + 1] = tostring(value)
        end
    end
end
if #found == 2 * most and tonumber(found[#found]) <= now - ARGV[3] then answer[2] = tostring(rank) end
return answer
"""

_SWEEP = """
-- KEYS: stamps, unacked, unacked_index. ARGV: cursor, how many. Returns the next cursor, and for each message without a
-- stamp its tag and its length.
local found = redis.call('ZSCAN', KEYS[3], ARGV[1], 'COUNT', ARGV[2])
local answer = {found[1]}
for at = 1, #found[2], 2 do
    if not redis.call('ZSCORE', KEYS[1], found[2][at]) then
        answer[#answer + 1] = found[2][at]
        answer[#answer + 1] = tostring(redis.call('HSTRLEN', KEYS[2], found[2][at]))
    end
end
return answer
"""

_GIVE_BACK = """
-- KEYS: stamps, unacked, unacked_index, queues. ARGV: tag, its stamp, its score in kombu's index, the message.
-- Returns 0 if it was acknowledged, given back, fetched again or stamped since the search.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return 0 end
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
if (redis.call('ZSCORE', KEYS[3], ARGV[1]) or '') ~= ARGV[3] then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
for at = 4, #KEYS do redis.call('RPUSH', KEYS[at], ARGV[4]) end
return 1
"""


class Suspect(NamedTuple):
    """A message without a recent stamp, as the search found it."""

    tag: str
    stamp: str
    fetched: str
    size: int


class Look(NamedTuple):
    now: float
    """Seconds since 1970, by the broker's clock."""
    next: int
    """The first rank of the next search; 0 if this one reached the end."""
    suspects: list[Suspect]

    def silent_for(self, suspect: Suspect) -> float:
        return self.now - float(suspect.stamp) / MICROS


class Unacked:
    """The messages that workers have, at the broker of *channel*, which nothing else uses."""

    def __init__(self, channel: Any, store: str, worker: str) -> None:
        self._channel = channel
        self._worker = worker
        # Not kombu's client for a key prefix: it handles only the commands that kombu uses.
        client = Redis(connection_pool=channel.async_pool)
        prefix: str = channel.global_keyprefix
        self._stamps, self._look = f"{prefix}taskguard.{store}.unacked", f"{prefix}taskguard.{store}.look"
        self._unacked, self._index = f"{prefix}{channel.unacked_key}", f"{prefix}{channel.unacked_index_key}"
        self._prefix = prefix
        self._client = client
        self._scripts = {name: client.register_script(text) for name, text in _SCRIPTS.items()}

    def stamp(self, tags: Sequence[str], gone: Sequence[str] = (), *, seen: bool = False) -> None:
        """This worker has *tags*, and no longer has *gone*.

        *seen*: another worker seems to have them, without a stamp. A live one stamps them before they count as silent.
        """
        for at in range(0, max(len(tags), len(gone)), TAGS_AT_ONCE):
            past, present = gone[at : at + TAGS_AT_ONCE], tags[at : at + TAGS_AT_ONCE]
            arguments = [int(SUSPECT * MICROS) if seen else "", KEPT, len(past), *past, *present]
            self._scripts["stamp"](keys=[self._stamps], args=arguments)

    def look(self, first: int = 0) -> Look | None:
        """The messages without a recent stamp, from that rank on; None if another worker searches."""
        answer = self._scripts["look"](
            keys=[self._look, self._stamps, self._unacked, self._index],
            args=[self._worker, int(LOOKS_FOR * 1000), int(SUSPECT * MICROS), first, AT_ONCE],
        )
        if not answer:
            return None
        now, following, *rest = map(bytes_to_str, answer)
        fields = iter(rest)
        suspects = [
            Suspect(tag, stamp, score, int(size)) for tag, stamp, score, size in zip(*[fields] * 4, strict=True)
        ]
        return Look(float(now) / MICROS, int(following), suspects)

    def unstamped(self, cursor: int) -> tuple[int, dict[str, int]]:
        """The next cursor, and some of the messages that no worker has stamped, with their lengths."""
        keys = [self._stamps, self._unacked, self._index]
        following, *rest = map(bytes_to_str, self._scripts["sweep"](keys=keys, args=[cursor, AT_ONCE]))
        return int(following), {tag: int(size) for tag, size in zip(rest[::2], rest[1::2], strict=True)}

    def headers(self, sizes: dict[str, int]) -> Iterator[tuple[str, Any]]:
        """The tags and headers of these messages, as many as one search may read."""
        tags: list[str] = []
        total = 0
        for tag, size in sizes.items():
            total += size
            if tags and total > READS:
                break
            tags.append(tag)
        for tag, found in zip(tags, self._client.hmget(self._unacked, tags) if tags else [], strict=True):
            yield tag, _headers(found) if found is not None else None

    def give_back(self, suspect: Suspect, rescued: Rescued) -> list[str]:
        """Move the message back to its queues and return them; empty if the message was left alone."""
        found = self._client.hget(self._unacked, suspect.tag)
        if found is None:
            return []
        message, exchange, routing_key = loads(bytes_to_str(found))
        queues = self._queues(message, exchange, routing_key)
        if not queues:
            return []  # no queue is bound to its exchange any more: it must not be lost for that
        text = dumps(given_back(message, rescued, lambda: str(uuid4())))
        keys = [self._stamps, self._unacked, self._index, *(f"{self._prefix}{queue}" for queue in queues)]
        done = self._scripts["give_back"](keys=keys, args=[suspect.tag, suspect.stamp, suspect.fetched, text])
        return queues if done else []

    def _queues(self, message: Any, exchange: str, routing_key: str) -> list[str]:
        channel = self._channel
        priority = channel._get_message_priority(message, reverse=False)
        return [channel._q_for_pri(queue, priority) for queue in channel._lookup(exchange, routing_key) if queue]


_SCRIPTS = {"stamp": _STAMP, "look": _LOOK, "sweep": _SWEEP, "give_back": _GIVE_BACK}


def _headers(text: bytes | str) -> Any:
    try:
        return loads(bytes_to_str(text))[0]["headers"]
    except (KeyError, IndexError, TypeError, ValueError):
        return None  # not a message of Celery's
