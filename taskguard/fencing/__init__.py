"""The resource's side of a fence: writes that compare the token where the data lives.

high_water.py  `fence.protect` in a SQL database; effects.py is `fence.once`
updates.py     a token, or a version, in a column of the user's own table; sqlalchemy.py and django/ do the same for
               those toolkits. Their parts are connections.py, statements.py, tables.py and urls.py
redis.py       keys of a Redis or Valkey server or Cluster; its parts are commands.py, slots.py and redis.lua
files.py       files that a holder replaces as a whole
http.py        the client that sends HTTP requests
receiver.py    the service that receives them; its parts are exchange.py and http_high_water.py. wsgi.py and asgi.py
               connect it to an application

Import each by its own name: no process then imports a driver that it does not use.
"""
