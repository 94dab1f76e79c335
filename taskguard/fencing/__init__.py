"""The resource's side of a fence: writes that compare the token where the data lives.

marks.py       `fence.protect`, in the transaction of a SQL database; effects.py is `fence.once`
updates.py     a fence, or a version, in a column of the user's own table; sqlalchemy.py and django/ are the same there
connections.py, statements.py, tables.py and urls.py are their parts
redis.py       keys of a Redis or Valkey server, or of a Cluster; commands.py and slots.py are its parts
files.py       a file that is replaced as a whole
http.py        the sender of HTTP requests
receiver.py    the service that gets them, with exchange.py and http_marks.py; wsgi.py and asgi.py put it before an
               application

Each is imported by its own name, so that nobody pays for a driver that is not used.
"""
