"""`taskguard migrate`: the tables of a store, and those of the fences in the databases that tasks write to."""

from __future__ import annotations

import json
from contextlib import closing

import click

from taskguard.fencing.statements import STATEMENTS
from taskguard.fencing.tables import create_tables
from taskguard.fencing.urls import connection_to, dialect_of
from taskguard.stores import open_store, safe_url

NOBODY_S_KEY = "taskguard migrate"


@click.command("migrate")
@click.argument("databases", nargs=-1, metavar="[DATABASE_URL]...")
@click.option("--store", envvar="TASKGUARD_STORE", show_envvar=True, help="URL of a store to be made ready too.")
@click.option("--sql", is_flag=True, help="Only show the statements for the databases, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")
def command(databases: tuple[str, ...], store: str | None, sql: bool, as_json: bool) -> None:
    """Make what is missing: tables for `fence.protect` and `fence.once` in each DATABASE_URL, and those of a store.

    Tables that are there stay as they are.
    """
    if not databases and not store:
        raise click.UsageError("nothing to do: give the URL of a database that tasks write to, or --store URL")
    shown = {safe_url(url): _statements(url) if sql else _made(url) for url in databases}
    ready = _make_ready(store) if store and not sql else ""
    if as_json:
        click.echo(json.dumps({"databases": shown, "store": ready or None}))
        return
    for url, statements in shown.items():
        click.echo("".join(f"{statement};\n" for statement in statements) if sql else f"{url}: ready", nl=not sql)
    if ready:
        click.echo(f"{ready}: ready")


def _statements(url: str) -> list[str]:
    return list(STATEMENTS[dialect_of(url)].tables)


def _made(url: str) -> list[str]:
    with connection_to(url, make=True) as connection:
        create_tables(connection)
        connection.commit()
    return ["taskguard_fence", "taskguard_once"]


def _make_ready(url: str) -> str:
    with closing(open_store(url)) as store:
        # What `get` needs may be there, and be all that an older release has made: a store that knows better says so.
        make_ready = getattr(store, "make_ready", None)
        if make_ready is not None:
            make_ready()
        else:
            store.get(NOBODY_S_KEY)  # it makes what it needs when it is first asked
    return safe_url(url)
