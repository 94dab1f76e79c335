"""One store, and processes of two releases that use it: each understands what the other one has written."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.servers import PostgresServer
from tests.upgrade.releases import RELEASES, Release, Releases

KEEP = 600.0


class Talker:
    """The store as one release sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def __call__(self, verb: str, *args: Any, **options: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps([verb, args, options])}\n".encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"{verb} ended the process"
        return json.loads(answer)

    def claim(self, key: str, owner: str, attempt: str, **facts: Any) -> tuple[str, dict[str, Any]]:
        claim = {"key": key, "owner": owner, "attempt": attempt, "lease": 30.0, "keep_for": KEEP, **facts}
        name, found = self("claim", ["Claim", claim])
        return name, found

    def end(self, verb: str, lease: dict[str, Any], how: str, outcome: str | None = None, **more: Any) -> bool:
        ending = {"how": how, "keep_for": KEEP, "outcome": outcome}
        return bool(self(verb, ["Lease", lease], ["Ending", ending], **more))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def talkers(releases: Releases, store_url: str) -> Iterator[dict[Release, Talker]]:
    namespace = f"upgrade-{uuid4().hex[:8]}"
    made = {release: Talker(releases.talker(release, store_url, namespace)) for release in RELEASES}
    try:
        yield made
    finally:
        for talker in made.values():
            talker.close()


def test_each_verb_of_a_job_s_life_is_carried_out_by_either_release(talkers: dict[Release, Talker]):
    for number, turns in enumerate(itertools.product(RELEASES, repeat=5)):
        publisher, first, heart, back, late = (talkers[release] for release in turns)
        second, third = heart, publisher
        key = f"work-{number}"
        assert publisher.claim(key, "job", "a0", state="queued", copy_for=60.0)[0] == "Lease"
        name, held = heart.claim(key, "duplicate", "b0", state="queued", copy_for=60.0)
        assert (name, held["owner"], held["state"], held["publish"]) == ("Held", "job", "queued", True), turns
        queued = ["Claimant", {"key": key, "owner": "job", "attempt": "a0"}]
        assert first("mark", [[queued, 60.0]], copy_for=60.0) == [True], turns

        name, one = first.claim(key, "job", "a1")
        assert (name, one["starts"]) == ("Lease", 1), turns
        assert heart("renew", [[["Lease", one], 30.0]]) == [True], turns
        name, held = late.claim(key, "other", "c0", skip=True)
        assert (name, held["owner"], held["token"]) == ("Held", "job", one["token"]), turns
        assert back.claim(key, "other", "c1")[1]["how"] == "skipped", turns
        assert back("requeue", ["Lease", one], 60.0, copy_for=60.0), turns
        assert not heart.end("complete", one, "succeeded"), turns

        name, two = second.claim(key, "job", "a2")
        assert (name, two["starts"]) == ("Lease", 1) and two["token"] > one["token"], turns
        assert third.end("complete", two, "succeeded", "kept"), turns
        name, done = late.claim(key, "job", "a3")
        assert (name, done["how"], done["outcome"]) == ("Completed", "succeeded", "kept"), turns
        name, done = first.claim(key, "next", "d0", reuse="success")
        assert (name, done["owner"], done["outcome"]) == ("Completed", "job", "kept"), turns
        name, done = second.claim(key, "joiner", "e0", join="job")
        assert (name, done["owner"], done["outcome"]) == ("Completed", "job", "kept"), turns

        name, three = publisher.claim(key, "again", "f0")
        assert name == "Lease" and three["token"] > two["token"], turns
        assert late.end("release", three, "failed"), turns
        assert heart.claim(key, "again", "f1")[1]["how"] == "failed", turns
        name, four = heart.claim(key, "last", "g0")
        assert name == "Lease" and four["token"] > three["token"], turns
        assert back.end("release", four, "released"), turns
        assert third("get", key)[1]["state"] == "free", turns


@pytest.mark.parametrize("asks", RELEASES)
def test_a_job_that_joined_is_not_started_again_by_either_release(talkers: dict[Release, Talker], asks: Release):
    name, lease = talkers["old"].claim("work", "holder", "a")
    assert name == "Lease" and talkers["old"].end("complete", lease, "succeeded", "kept")
    assert talkers["new"].claim("work", "joiner", "b", join="holder")[0] == "Completed"

    name, done = talkers[asks].claim("work", "joiner", "c")

    assert (name, done["how"], done["outcome"]) == ("Completed", "succeeded", "kept")


# -- rights on PostgreSQL ----------------------------------------------------------------------------------------------


@pytest.fixture
def limited(postgres_server: PostgresServer) -> Iterator[tuple[str, str]]:
    """A schema, and the URL of a role that may use what is in it but create nothing."""
    name = f"upgrade_{uuid4().hex[:8]}"
    separator = "&" if "?" in postgres_server.url else "?"
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        yield name, f"postgresql://{name}:secret@{postgres_server.url.rpartition('@')[2]}{separator}schema={name}"
        admin.execute(f"DROP SCHEMA {name} CASCADE")
        admin.execute(f"DROP OWNED BY {name}")
        admin.execute(f"DROP ROLE {name}")


def migrate(releases: Releases, release: Release, url: str, directory: Path) -> None:
    log = directory / f"migrate-{release}.log"
    process = releases.start(release, ["taskguard.cli", "migrate", "--store", url], log=log)
    assert process.wait(60) == 0, log.read_text()


def test_migrate_makes_a_store_of_the_older_release_ready_for_workers_that_may_create_nothing(
    releases: Releases, limited: tuple[str, str], postgres_server: PostgresServer, tmp_path: Path
):
    schema, url = limited
    separator = "&" if "?" in postgres_server.url else "?"
    administrators = f"{postgres_server.url}{separator}schema={schema}"
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        old = Talker(releases.talker("old", administrators, "upgrade"))
        assert old.claim("made", "by the older release", "a")[0] == "Lease"
        old.close()
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {schema}")
        admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}")

    migrate(releases, "new", administrators, tmp_path)

    for number, release in enumerate(RELEASES):
        talker = Talker(releases.talker(release, url, "upgrade"))
        try:
            name, lease = talker.claim(f"work-{number}", "job", "a")
            assert name == "Lease"
            assert talker.end("complete", lease, "succeeded")
        finally:
            talker.close()
