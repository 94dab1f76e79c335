"""Two beats run side by side, and each slot is published once.

python examples/schedule.py
"""

import time
from contextlib import closing

from celery import Celery
from celery.beat import Scheduler

from taskguard.celery import install
from taskguard.celery.beat import guarded
from taskguard.schedule import Note

app = Celery("shop", broker="memory://")
app.conf.task_default_queue = "shop"
app.conf.result_expires = None
app.conf.beat_schedule = {
    "refresh": {"task": "shop.refresh", "schedule": 1.0, "options": {"overlap": "allow_all", "catch_up": "all"}},
}
install(app, store="memory://")

# In production, run `celery -A shop beat -S taskguard` on as many hosts as you like.
beats = [guarded(Scheduler)(app) for _ in range(2)]
end = time.monotonic() + 3.5
while time.monotonic() < end:
    time.sleep(min(beat.tick() for beat in beats) or 0.01)

slots = []
with app.connection_for_write() as connection, closing(connection.SimpleQueue("shop")) as queue:
    while queue.qsize():
        message = queue.get_nowait()
        message.ack()
        note = Note.of(message.headers["taskguard_slot"])
        assert note is not None
        slots.append(note.scheduled_for)
        print(f"{note.schedule} for {note.scheduled_for:%H:%M:%S}, job {message.headers['id']}")

assert len(slots) == len(set(slots)) >= 3
