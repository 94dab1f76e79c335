"""What a Redis broker was told about each message: whether it has lost one that nobody had acknowledged.

Kombu takes a message from its list, and then writes it down as unacknowledged. A worker that is killed in between takes
the message along, and no guard can know of it. A broker with acknowledgements would deliver it again; so does the test,
once it has seen that this is what happened.
"""

from __future__ import annotations

import ast
import json
import re
import socket
import threading
import time
from contextlib import suppress

import redis

IN_FLIGHT = 1.5
"""Seconds that a message may be on its way from the list to a worker."""
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_OF_INTEREST = (b'"LPUSH"', b'"RPUSH"', b'"HSET" "unacked"')


class Monitor:
    def __init__(self, host: str, port: int, queue: str) -> None:
        self._client = redis.Redis(host=host, port=port, db=0)
        self._queue = queue
        self._lock = threading.Lock()
        self._pushed: dict[str, bytes] = {}
        """By its tag: each message that nobody is known to have received since it was pushed."""
        self._missing: dict[str, float] = {}
        """Those of them that are not in the list, and since when."""
        self.restored = 0
        self._socket = socket.create_connection((host, port))
        self._socket.sendall(b"MONITOR\r\n")
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._client.close()

    def restore(self) -> None:
        """Push again what a killed worker has taken from the list and not written down."""
        listed = set(map(_tag, self._client.lrange(self._queue, 0, -1)))
        with self._lock:
            unlisted = {tag: message for tag, message in self._pushed.items() if tag not in listed}
        now = time.monotonic()
        self._missing = {tag: self._missing.get(tag, now) for tag in unlisted}
        for tag, since in list(self._missing.items()):
            if now - since > IN_FLIGHT:
                del self._missing[tag]
                self.restored += 1
                self._client.lpush(self._queue, unlisted[tag])

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._socket.makefile("rb") as lines:  # it is closed
            for line in lines:
                if any(words in line for words in _OF_INTEREST):
                    self._hear([ast.literal_eval(f'b"{word.decode("latin-1")}"') for word in _WORD.findall(line)])

    def _hear(self, words: list[bytes]) -> None:
        verb, name = words[0], words[1].decode()
        with self._lock:
            if verb == b"HSET":
                self._pushed.pop(words[2].decode(), None)
            elif name == self._queue:
                self._pushed.update({_tag(message): message for message in words[2:]})


def _tag(message: bytes) -> str:
    return str(json.loads(message)["properties"]["delivery_tag"])
