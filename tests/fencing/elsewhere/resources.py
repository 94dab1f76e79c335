"""What the holders of the story write to: keys, files, services."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from taskguard import Fence
from taskguard.fencing.files import fenced_replace
from taskguard.fencing.http import FenceAuth, raise_if_stale
from taskguard.fencing.redis import FencedRedis


class RedisKey:
    def __init__(self, target: str) -> None:
        self._client = self.connect(target)

    def connect(self, url: str) -> Any:
        return redis.Redis.from_url(url)

    def prepare(self, fence: Fence | None, text: str) -> Callable[[], None]:
        client = self._client if fence is None else FencedRedis(self._client, fence)
        return lambda: client.set("report", text)

    def read(self) -> str:
        return str(self._client.get("report").decode())


class ClusterKey(RedisKey):
    def connect(self, url: str) -> Any:
        return redis.RedisCluster.from_url(url)


class File:
    def __init__(self, target: str) -> None:
        self._path = Path(target)

    def prepare(self, fence: Fence | None, text: str) -> Callable[[], None]:
        if fence is None:
            return lambda: self._path.write_text(text) and None
        return lambda: fenced_replace(self._path, text, fence, wait_up_to=0.3)

    def read(self) -> str:
        return self._path.read_text()


class HttpService:
    """The target is the URL of the service, and the ledger that it keeps."""

    def __init__(self, target: str) -> None:
        import requests

        self._url, _, ledger = target.partition(" ")
        self._ledger = Path(ledger)
        self._requests = requests
        self._session = requests.Session()

    def prepare(self, fence: Fence | None, text: str) -> Callable[[], None]:
        auth = FenceAuth(fence, name=text, resource="report") if fence else None
        # Prepared, it has its headers: the process is stopped after FenceAuth has checked the fence.
        request = self._requests.Request("POST", self._url, data=text, auth=auth).prepare()

        def send() -> None:
            response = self._session.send(request, timeout=20)
            raise_if_stale(response, fence)
            assert response.status_code == 201, response.text

        return send

    def read(self) -> str:
        return self._ledger.read_text().splitlines()[-1]
