"""A Redis Cluster of three primaries, each with a third of the slots."""

from __future__ import annotations

from contextlib import closing, suppress

import redis

from tests.servers import RedisServer, require
from tests.waiting import wait_until

SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))


class Cluster:
    def __init__(self) -> None:
        flavour = "redis-8" if RedisServer("valkey").missing() else "valkey"
        settings = {"cluster-enabled": "yes", "cluster-node-timeout": "5000"}
        self.servers = [require(flavour, settings=settings) for _ in SLOTS]
        for server, (first, last) in zip(self.servers, SLOTS, strict=True):
            with closing(redis.Redis.from_url(server.url)) as node:
                node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                for other in self.servers:
                    node.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
        for server in self.servers:
            wait_until(lambda server=server: _sees_all(server), what="the nodes of the cluster know each other")

    @property
    def url(self) -> str:
        return self.servers[0].url

    def client(self) -> redis.RedisCluster:
        return redis.RedisCluster.from_url(self.url)

    def close(self) -> None:
        for server in self.servers:
            server.close()


def _sees_all(server: RedisServer) -> bool:
    with closing(redis.Redis.from_url(server.url)) as node, suppress(redis.RedisError):
        state = node.execute_command("CLUSTER INFO")
        text = state if isinstance(state, dict) else dict(line.split(":") for line in state.decode().split())
        return text["cluster_state"] == "ok" and text["cluster_known_nodes"] == "3"
    return False
