"""Keys of taskguard in the same slot of a Redis Cluster as a key of the user's."""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache
from itertools import count

from redis.crc import key_slot

SLOTS = 16384


def beside(name: bytes, kind: bytes) -> bytes:
    """A key of taskguard in the slot of *name*; different names give different keys."""
    tag = _tag(name)
    return b"taskguard:%b:{%b}" % (kind, tag) if tag == name else b"taskguard:%b:{%b}:%b" % (kind, tag, name)


def _tag(name: bytes) -> bytes:
    start = name.find(b"{")
    end = name.find(b"}", start + 1)
    if 0 <= start < end - 1:
        return name[start + 1 : end]  # the name has a tag: the text between its first pair of braces
    if b"}" not in name:
        return name
    return _tag_in(key_slot(name))  # in braces the tag would end at the name's own brace


@lru_cache(maxsize=1024)
def _tag_in(slot: int) -> bytes:
    return next(tag for tag in (b"%x" % number for number in count()) if crc_hqx(tag, 0) % SLOTS == slot)
