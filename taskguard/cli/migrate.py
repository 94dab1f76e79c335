"""`taskguard migrate`: create the tables of a store, and the fencing tables in the databases that tasks write to."""

from __future__ import annotations

import json
from contextlib import closing

import click

from taskguard.fencing.statements import STATEMENTS
from taskguard.fencing.tables import create_tables
from taskguard.fencing.urls import connection_to, dialect_of
from taskguard.stores import open_store, safe_url

UNUSED_KEY = "taskguard migrate"


@click.command("migrate")
@click.argument("databases", nargs=-1, metavar="[DATABASE_URL]...")
@click.option("--store", envvar="TASKGUARD_STORE", show_envvar=True, help="URL of a store whose tables to create too.")
@click.option("--sql", is_flag=True, help="Print the statements for the databases; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON, for programs.")
def command(databases: tuple[str, ...], store: str | None, sql: bool, as_json: bool) -> None:
    """Create the tables of `fence.protect` and `fence.once` in each DATABASE_URL, and those of a store.

    Existing tables stay as they are.
    """
    if not databases and not store:
        raise click.UsageError("nothing to do: name the URL of a database that tasks write to, or --store URL")
    shown = {safe_url(url): _statements(url) if sql else _create(url) for url in databases}
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


def _create(url: str) -> list[str]:
    with connection_to(url, make=True) as connection:
        create_tables(connection)
        connection.commit()
    return ["taskguard_fence", "taskguard_once"]


def _make_ready(url: str) -> str:
    with closing(open_store(url)) as store:
        # `get` may find all that it needs although an older release made only part: such a store has `make_ready`.
        make_ready = getattr(store, "make_ready", None)
        if make_ready is not None:
            make_ready()
        else:
            store.get(UNUSED_KEY)  # the first request creates what the store needs
    return safe_url(url)
