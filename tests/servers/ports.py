"""Loopback ports that stay one server's own while that server is down."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"

# Below the range that Linux (32768 and up) and macOS (49152 and up) give to outgoing connections: one of those could
# otherwise sit on the port of a server that is about to come back.
_RANGE = range(20_000, 32_000)


class ReservedPort:
    """A free TCP port that no other test process is given before `release()`."""

    def __init__(self) -> None:
        self.number, self._claim = _reserve()

    def release(self) -> None:
        self._claim.close()


def _reserve() -> tuple[int, socket.socket]:
    # Not the shared generator: test plug-ins seed it alike in every worker process.
    for number in random.SystemRandom().sample(_RANGE, 500):
        claim = _claim(number)
        if claim is not None:
            return number, claim
    raise OSError(f"no free port among 500 of {_RANGE}")


def _claim(number: int) -> socket.socket | None:
    # The UDP port of the same number is the reservation: the kernel keeps it exclusive and frees it with this
    # process, while the TCP port stays open to the server.
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind((HOST, number))
        with socket.socket() as probe:
            probe.bind((HOST, number))
    except OSError:
        claim.close()
        return None
    return claim
