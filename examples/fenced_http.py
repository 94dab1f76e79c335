"""A service that charges: it replays the response to a repeated request, and refuses a superseded client.

python examples/fenced_http.py             (with requests; httpx works the same)
"""

import json
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

import requests

from taskguard import Guard, StaleFenceError
from taskguard.fencing.http import FenceAuth, raise_if_stale
from taskguard.fencing.receiver import Receiver, anyone
from taskguard.fencing.wsgi import Fenced

charged = []


def application(environ, start_response):
    charged.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode())
    start_response("201 Created", [("Content-Type", "application/json")])
    return [json.dumps({"charges": len(charged)}).encode()]


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


# -- the service: the middleware keeps its state in a store, here in the memory of this process
server = make_server("127.0.0.1", 0, Fenced(application, Receiver("memory://", caller=anyone)), handler_class=Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/charges"

# -- the job
guard = Guard("memory://")

with guard.hold("order 7") as slow:
    for _ in range(2):  # as if the first response was lost
        print(requests.post(url, data="4200", auth=FenceAuth(name="charge"), timeout=10).json())

with guard.hold("order 7") as newer:
    print(requests.post(url, data="100", auth=FenceAuth(name="fee"), timeout=10).json())

# The first holder was stopped for longer than its lease. It wakes and sends the headers that it had made before.
late = {"X-Fencing-Token": str(slow.token), "X-Fencing-Resource": slow.key}
try:
    raise_if_stale(requests.post(url, data="200", headers=late, timeout=10), slow)
except StaleFenceError as refused:
    print(refused)

assert charged == ["4200", "100"]
