"""A confirmation by e-mail: decided exactly once, sent at least once, recognisable if it is sent twice.

python examples/send_an_email.py
"""

import sqlite3

from taskguard import Fence, Guard

database = sqlite3.connect("shop.db")
database.execute("CREATE TABLE IF NOT EXISTS outbox (message_id TEXT PRIMARY KEY, recipient TEXT, sent INTEGER)")
database.execute("DELETE FROM outbox")
database.commit()
delivered: list[str] = []  # what the SMTP server has accepted


class Killed(BaseException):
    """Simulates kill -9."""


def confirm(order_id: int, recipient: str, fence: Fence) -> None:
    """The job: change the order and write the mail to the outbox, in one transaction."""
    with database:
        fence.protect(database)
        if fence.once(database, "confirmation"):
            message_id = f"<order-{order_id}@shop.example>"
            database.execute("INSERT INTO outbox VALUES (?, ?, 0)", (message_id, recipient))


def send_mail(dies: bool = False) -> None:
    """The sender: one at a time. If the connection breaks, nobody knows whether the server accepted the mail."""
    with guard.hold("outbox", wait_up_to=5) as fence:
        for message_id, _recipient in database.execute("SELECT message_id, recipient FROM outbox WHERE sent = 0"):
            fence.check()  # as late as possible: it makes the window small but cannot close it
            delivered.append(message_id)  # smtp.send_message(...), with the same Message-ID each time
            if dies:
                raise Killed
            with database:
                fence.protect(database)
                database.execute("UPDATE outbox SET sent = 1 WHERE message_id = ?", (message_id,))


guard = Guard("memory://")
for _ in range(3):  # the queue redelivers the job
    guard.run("confirm:7", confirm, 7, "alice@example.org", keep_for=86400)

try:
    send_mail(dies=True)
except Killed:
    print("the sender died after the server accepted the mail and before it recorded that")
send_mail()
send_mail()

assert database.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
assert len(delivered) == 2 and len(set(delivered)) == 1
print(f"sent {len(delivered)} times, as one message: {set(delivered)}")
