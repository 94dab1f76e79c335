"""`taskguard migrate` and `taskguard purge`, and Django's own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskguard.cli.main import taskguard
from tests.fencing.databases import connect, django_client
from tests.servers import PostgresServer


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(taskguard, arguments)
    return done.exit_code, done.output


def drop_tables(url: str) -> None:
    client = connect(url)
    for table in ("taskguard_fence", "taskguard_once"):
        client.execute(f"DROP TABLE IF EXISTS {table}")
    client.connection.commit()
    client.close()


def count(url: str) -> Any:
    client = connect(url)
    try:
        return client.execute("SELECT count(*) FROM taskguard_once")[0][0]
    finally:
        client.close()


def test_migrate_makes_the_tables_and_can_be_run_again(url: str):
    drop_tables(url)
    for _ in range(2):
        code, output = run("migrate", url)
        assert code == 0 and output.endswith(": ready\n")
    assert count(url) == 0


def test_migrate_takes_urls_of_sqlalchemy(url_of: Any):
    url = url_of("mariadb")
    drop_tables(url)
    assert run("migrate", url.replace("mysql:", "mysql+pymysql:"))[0] == 0
    assert count(url) == 0


def test_migrate_can_only_show_what_it_would_do(url_of: Any):
    url = url_of("postgresql")
    drop_tables(url)
    code, output = run("migrate", "--sql", url)
    assert code == 0 and output.count("CREATE TABLE IF NOT EXISTS") == output.count(";\n") == 2
    with pytest.raises(Exception, match="does not exist"):
        count(url)


def test_what_is_only_shown_needs_no_database(tmp_path: Path):
    assert run("migrate", "--sql", "postgresql://nobody@127.0.0.1:1/db")[0] == 0
    assert run("migrate", "--sql", f"sqlite:///{tmp_path / 'shop'}.db")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_migrate_makes_a_store_ready(postgres_server: PostgresServer, tmp_path: Path):
    file = tmp_path / "store.db"
    code, output = run("migrate", "--store", f"sqlite:///{file}", "--json")
    assert (code, json.loads(output)["store"]) == (0, f"sqlite:///{file}")
    assert file.exists()
    assert run("migrate", "--store", f"{postgres_server.url}?schema=migrated")[0] == 0
    client = connect(postgres_server.url)
    assert client.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'migrated'")[0][0] > 0
    client.close()


def test_what_cannot_be_done_has_an_exit_code_and_a_sentence():
    assert run("migrate")[0] == 2
    code, output = run("migrate", "oracle://host/db")
    assert code == 2 and "is not a database URL" in output
    code, output = run("migrate", "postgresql://user:secret@127.0.0.1:1/db")
    assert code == 3 and "secret" not in output


def test_what_a_database_refuses_is_told_in_its_own_words(url_of: Any, tmp_path: Path):
    (tmp_path / "shop.db").write_text("no database at all, only a text that is long enough")
    for command in ("migrate", "purge"):
        code, output = run(command, f"sqlite:///{tmp_path / 'shop'}.db")
        assert code == 3 and "file is not a database" in output
    code, output = run("purge", f"sqlite:///{tmp_path / 'misspelt'}.db")
    assert code == 3 and "the file does not exist" in output and not (tmp_path / "misspelt.db").exists()


def test_options_of_a_mysql_url_are_not_left_out_in_silence(url_of: Any):
    code, output = run("migrate", f"{url_of('mariadb')}?ssl_ca=/etc/ca.pem")
    assert code == 2 and "mysql+pymysql" in output


def test_purge_says_what_to_run_where_the_tables_are_missing(url: str):
    drop_tables(url)
    code, output = run("purge", url)
    if url.startswith("sqlite"):  # there they are made at first use
        assert code == 0 and output.endswith(": 0 rows purged\n")
    else:
        assert code == 2 and "taskguard migrate" in output


def test_purge_removes_what_is_old(url: str):
    client = connect(url)
    client.execute("INSERT INTO taskguard_once (effect, name, owner, made_at, kept_until) VALUES ('a', '', '', 0, 0)")
    client.execute("INSERT INTO taskguard_fence (resource, token, seen_at) VALUES ('a', 1, 0)")
    client.connection.commit()
    client.close()
    code, output = run("purge", "--json", url)
    assert code == 0 and list(json.loads(output)["purged"].values()) == [2]
    assert count(url) == 0


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_django_migrates_forth_and_back(kind: str, url_of: Any, open_client: Any):
    url = url_of(kind)
    drop_tables(url)
    client = open_client(url, django_client)
    from django.core.management import call_command

    def migrate(*to: str) -> None:
        call_command("migrate", "taskguard_fencing", *to, database=client.connection.alias, verbosity=0)

    migrate()
    assert count(url) == 0
    migrate("zero")
    with pytest.raises(Exception, match="taskguard_once"):
        count(url)
    migrate()
    with client.transaction():
        client.execute("DROP TABLE django_migrations")
    call_command("makemigrations", "taskguard_fencing", check=True, dry_run=True, verbosity=0)  # nothing is left to do
