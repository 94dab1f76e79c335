"""Each command on each kind of store: what it shows, its JSON, its exit code."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from taskguard import Guard, StaleFenceError
from taskguard.protocol.store import Claim, Ending, Lease
from taskguard.runtime.whereabouts import whereabouts
from tests.cli.conftest import Run
from tests.waiting import wait_until

KEY = "shop.charge:1:" + "a" * 32
OTHER = "shop.report:1:" + "b" * 32


def held(guard: Guard, key: str = KEY, owner: str = "job-1", **options: Any) -> Lease:
    options = {"lease": 30, "keep_for": 60, **options}
    _, lease = guard.ask(Claim(key, owner, f"attempt of {owner}", **options))
    assert isinstance(lease, Lease)
    return lease


def told(guard: Guard) -> None:
    """What the guard decided is in the history."""
    assert guard.recorder is not None
    guard.recorder.flush()


def answer(result: Any, code: int = 0) -> Any:
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


# -- ls ----------------------------------------------------------------------------------------------------------


def test_ls_shows_who_holds_what_and_where(guard: Guard, run: Run):
    held(guard, label="order_id=42")
    held(guard, OTHER, "job-2", state="queued")

    def rows(*options: str) -> list[list[str]]:
        return [line.split() for line in run("ls", *options).stdout.splitlines()]

    here = whereabouts()
    assert rows()[0] == ["STATE", "SINCE", "KEY", "JOB", "WHERE"]
    assert [(row[0], row[2:]) for row in rows()[1:]] == [
        ("running", ["s", *readable(KEY, "order_id=42"), "job-1", here]),
        ("queued", ["s", *readable(OTHER), "job-2", here]),
    ]
    assert [row[3] for row in rows("--keys")[1:]] == [KEY, OTHER]


def readable(key: str, label: str = "") -> list[str]:
    space, _, digest = key.split(":")
    return [space, label or digest[:8]]


def test_what_the_history_has_of_arguments_stands_beside_a_key_without_a_label(guard: Guard, run: Run):
    guard.ask(Claim(KEY, "job-1", "attempt", lease=30, keep_for=60), arguments="order_id=42, cents=7")
    told(guard)

    assert "(order_id=42, cents=7)" in run("ls").stdout
    assert "(order_id=42, cents=7)" in run("show", KEY).stdout


def test_show_says_where_a_job_runs(guard: Guard, run: Run):
    held(guard, label="order_id=42")
    shown = run("show", KEY).stdout

    assert whereabouts() in shown
    assert f"{KEY.split(':')[0]} order_id=42" in shown
    [entry] = answer(run("show", KEY, "--json"))
    assert (entry["label"], entry["where"]) == ("order_id=42", whereabouts())


def test_ls_filters_by_state_task_and_age(guard: Guard, run: Run):
    held(guard)
    held(guard, OTHER, "job-2", state="queued")
    done = held(guard, "by hand", "job-3")
    guard.store.complete(done, Ending(how="succeeded", keep_for=60))

    def keys(*options: str) -> list[str]:
        return [entry["key"] for entry in answer(run("ls", "--json", *options))]

    assert keys() == [KEY, OTHER]
    assert keys("--state", "queued") == [OTHER]
    assert keys("--state", "done") == ["by hand"]
    assert keys("--task", "shop.ch*") == [KEY]
    assert keys("--task", "shop.report") == [OTHER]
    assert keys("--older-than", "1h") == []
    assert keys("--limit", "1") == [KEY]


def test_ls_tells_a_claim_that_ran_out_from_one_that_runs(guard: Guard, run: Run):
    held(guard, lease=0.05)
    wait_until(lambda: answer(run("ls", "--json"))[0]["state"] == "ran-out")

    assert "ran-out" in run("ls").stdout


def test_ls_says_that_there_is_nothing(guard: Guard, run: Run):
    result = run("ls")

    assert result.exit_code == 0
    assert "No keys are held" in result.stdout


def test_ls_says_that_there_is_more_than_it_shows(guard: Guard, run: Run):
    held(guard)
    held(guard, OTHER, "job-2")

    assert run("ls", "--limit", "2").stderr == ""
    assert "There are more keys than the oldest 1" in run("ls", "--limit", "1").stderr
    assert len(answer(run("ls", "--limit", "1", "--json"))) == 1


def test_a_long_key_is_one_line_where_nobody_looks(guard: Guard, run: Run):
    held(guard, "x" * 2000)

    assert f" {'x' * 2000} " in run("ls").stdout


@pytest.mark.parametrize("duration", ["soon", "nan", "inf", "-5m"])
def test_a_duration_that_is_none_is_a_wrong_use(guard: Guard, run: Run, duration: str):
    result = run("ls", f"--older-than={duration}")

    assert result.exit_code == 2
    assert "write 90, 90s, 15m, 2h or 1d" in result.output


def test_a_key_cannot_write_to_the_terminal_as_it_likes(guard: Guard, run: Run):
    key = "evil\x1b]0;title\x07\x1b[2J\n[bold]key"
    held(guard, key)
    told(guard)

    commands = (("ls",), ("show", key), ("explain", key), ("watch", "--for", "0"), ("stats",), ("release", key))
    for command in (*commands, ("release", key, "--yes"), ("show", f"no {key}")):
        shown = run(*command).output
        assert "\x1b" not in shown and "\x07" not in shown
        assert r"evil\x1b]0;title\x07\x1b[2J" in shown


# -- show --------------------------------------------------------------------------------------------------------


def test_show_says_all_that_is_known(guard: Guard, run: Run):
    lease = held(guard)
    shown = dict(line.split(maxsplit=1) for line in run("show", KEY).stdout.splitlines() if line.strip())

    assert shown["state"].strip() == "running"
    assert shown["job"].strip() == "job-1"
    assert shown["token"].strip() == str(lease.token)


def test_show_in_json_has_its_place_in_the_queue_too(guard: Guard, run: Run):
    held(guard)
    held(guard, f"{KEY}:next", "job-2", state="queued")
    found = answer(run("show", KEY, "--json"))

    assert [(entry["key"], entry["owner"], entry["task"]) for entry in found] == [
        (KEY, "job-1", "shop.charge"),
        (f"{KEY}:next", "job-2", "shop.charge"),
    ]


def test_show_of_nothing_is_exit_code_1(guard: Guard, run: Run):
    assert run("show", "nothing").exit_code == 1
    assert answer(run("show", "nothing", "--json"), code=1) == []


# -- explain -----------------------------------------------------------------------------------------------------


def test_explain_says_who_holds_it_and_who_was_skipped(guard: Guard, run: Run):
    lease = held(guard, payload="shop.charge:digest;order=00000001;cents=00000002")
    guard.ask(
        Claim(KEY, "job-2", "x", lease=30, keep_for=60, payload="shop.charge:other;order=00000001;cents=99999999")
    )
    told(guard)
    shown = run("explain", KEY).stdout

    assert re.search(rf"{KEY} has been running for \d+ s: job job-1 at ", shown)
    assert f"token {lease.token}" in shown
    assert "1 of the last 2 decisions skipped a call or reused an outcome" in shown
    assert "differed from the holder's in: cents" in shown
    assert "skipped: job job-1 had been running" in shown


def test_explain_in_json(guard: Guard, run: Run):
    held(guard)
    guard.ask(Claim(KEY, "job-2", "x", lease=30, keep_for=60))
    told(guard)
    found = answer(run("explain", KEY, "--json"))

    assert [decision["kind"] for decision in found["decisions"]] == ["claimed", "duplicate"]
    assert found["decisions"][1]["holder"] == "job-1"
    assert found["entries"][0]["owner"] == "job-1"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"state": "queued"}, "No publisher has confirmed its message"),
        ({"lease": 0.001}, "dead, stopped, or cut off"),
    ],
)
def test_explain_says_what_a_call_would_meet(guard: Guard, run: Run, how: dict[str, Any], said: str):
    held(guard, **how)

    wait_until(lambda: said in run("explain", KEY).stdout)


def test_explain_finds_a_key_that_begins_others_which_had_more_to_decide(guard: Guard, run: Run):
    for key in ("invoice:4", *["invoice:42"] * 12):
        guard.run(key, int, keep_for=60)
    told(guard)

    assert [d["kind"] for d in answer(run("explain", "invoice:4", "--limit", "1", "--json"))["decisions"]] == [
        "completed"
    ]


def test_explain_of_what_is_over(guard: Guard, run: Run):
    guard.run("done", int, keep_for=60)
    with guard.hold("free"):
        pass

    assert "is done" in run("explain", "done").stdout
    assert "is free: the next call runs" in run("explain", "free").stdout


def test_explain_of_nothing_is_exit_code_1(guard: Guard, run: Run):
    assert run("explain", "nothing").exit_code == 1


# -- release -----------------------------------------------------------------------------------------------------


def test_release_frees_the_key_and_says_whose_it_was(guard: Guard, run: Run):
    lease = held(guard)
    result = run("release", KEY, "--yes")

    assert result.exit_code == 0
    assert f"{KEY} is free; its holder was job-1, token {lease.token}." in result.stdout
    assert guard.store.renew([(lease, 30)]) == [False]
    assert "by hand, " in run("explain", KEY).stdout


def test_release_without_yes_and_without_a_terminal_says_who_is_affected_and_does_nothing(guard: Guard, run: Run):
    lease = held(guard)
    result = run("release", KEY)

    assert result.exit_code == 2
    assert "job job-1" in result.output
    assert "it loses its lease" in result.output
    assert guard.store.renew([(lease, 30)]) == [True]


def test_release_never_frees_a_successor(guard: Guard, run: Run, monkeypatch: pytest.MonkeyPatch):
    held(guard)

    def changes_hands(*_: Any) -> None:  # while somebody thinks about the answer
        guard.store.forget(KEY)
        held(guard, owner="successor")

    monkeypatch.setattr("taskguard.cli.release._ask", changes_hands)
    result = run("release", KEY)

    assert result.exit_code == 1
    assert "changed hands" in result.stdout
    entry = guard.store.get(KEY)
    assert entry is not None and (entry.owner, entry.state) == ("successor", "running")


def test_release_of_what_nobody_holds_is_exit_code_1(guard: Guard, run: Run):
    assert run("release", KEY, "--yes").exit_code == 1
    assert answer(run("release", KEY, "--yes", "--json"), code=1) == {"released": []}


def test_release_by_somebody_who_has_no_name(guard: Guard, run: Run, monkeypatch: pytest.MonkeyPatch):
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nobody)
    held(guard)

    assert run("release", KEY, "--yes").exit_code == 0


def test_release_queued_frees_the_keys_of_queued_jobs_and_no_others(guard: Guard, run: Run):
    held(guard)
    first = held(guard, OTHER, "job-2", state="queued")
    held(guard, "by hand", "job-3", state="queued")
    released = answer(run("release", "--queued", "--task", "shop.*", "--yes", "--json"))["released"]

    assert released == [{"key": OTHER, "owner": "job-2", "token": first.token}]
    assert [guard.store.get(key).state for key in (KEY, OTHER, "by hand")] == ["running", "free", "queued"]  # type: ignore[union-attr]
    assert "by hand is free; its holder was job-3" in run("release", "--queued", "--yes").stdout
    assert answer(run("release", "--queued", "--yes", "--json"), code=1) == {"released": []}


def test_release_queued_leaves_alone_what_is_queued_for_less_long(guard: Guard, run: Run):
    held(guard, state="queued")

    assert answer(run("release", "--queued", "--older-than", "1h", "--yes", "--json"), code=1) == {"released": []}


def test_release_queued_without_yes_and_without_a_terminal_counts_them_and_does_nothing(guard: Guard, run: Run):
    held(guard, state="queued")
    held(guard, OTHER, "job-2", state="queued")
    result = run("release", "--queued")

    assert result.exit_code == 2
    assert "shop.charge: 1 queued" in result.output
    assert "shop.report: 1 queued" in result.output
    assert "message stays in its queue" in result.output
    assert {entry.state for entry in guard.store.scan("shop.")} == {"queued"}


@pytest.mark.parametrize("words", [(), (KEY, "--queued"), (KEY, "--task", "shop.*"), (KEY, "--older-than", "1h")])
def test_release_takes_a_key_or_queued(guard: Guard, run: Run, words: tuple[str, ...]):
    result = run("release", *words, "--yes")

    assert result.exit_code == 2
    assert "name a key, or write --queued" in result.output


def test_explain_names_the_way_out_of_a_purged_queue(guard: Guard, run: Run):
    lease = held(guard, state="queued")
    guard.store.mark([(lease, 30)], copy_for=30)

    assert "taskguard release --queued" in " ".join(run("explain", KEY).stdout.split())


def test_release_in_json(guard: Guard, run: Run):
    lease = held(guard)

    assert answer(run("release", KEY, "--yes", "--json")) == {
        "released": [{"key": KEY, "owner": "job-1", "token": lease.token}]
    }


# -- stats, watch, bench -----------------------------------------------------------------------------------------


def test_stats_count_by_task(guard: Guard, run: Run):
    held(guard)
    guard.ask(Claim(KEY, "job-2", "x", lease=30, keep_for=60))
    guard.run(OTHER, int, keep_for=60)
    guard.run(OTHER, int, keep_for=60)
    told(guard)
    facts = answer(run("stats", "--json"))

    charge, report = facts["tasks"]["shop.charge"], facts["tasks"]["shop.report"]
    assert (charge["starts"], charge["duplicates"]) == (1, 1)
    assert (report["starts"], report["completed"], report["reused"]) == (1, 1, 1)
    assert (facts["states"]["running"], facts["longest_held"]["key"]) == (1, KEY)
    shown = run("stats").stdout
    assert "1 running" in shown
    assert f"Longest held: {KEY}" in shown


def test_a_job_that_waited_and_ran_is_one_that_met_a_twin_and_was_not_skipped(guard: Guard, run: Run):
    lease = held(guard)
    for attempt in ("x", "y", "z"):  # it is put back, and looks again
        guard.ask(Claim(KEY, "job-2", attempt, lease=30, keep_for=60))
    guard.store.release(lease, Ending(how="succeeded", keep_for=60))
    held(guard, owner="job-2")
    told(guard)

    shown = run("explain", KEY).stdout
    assert "0 of the last 5 decisions skipped a call or reused an outcome" in shown
    assert shown.count("waited: job job-1 had been running") == 3
    charge = answer(run("stats", "--json"))["tasks"]["shop.charge"]
    assert (charge["starts"], charge["duplicates"]) == (2, 1)


def test_a_write_that_a_resource_refused_is_counted_and_explained(guard: Guard, run: Run):
    with pytest.raises(StaleFenceError), guard.hold(KEY) as fence:
        raise StaleFenceError(KEY, fence.token, "account 7", fence.token + 1)
    told(guard)

    assert answer(run("stats", "--json"))["tasks"]["shop.charge"]["refused"] == 1
    assert "the resource has seen a higher token (account 7 has seen" in run("explain", KEY).stdout


def test_watch_writes_a_line_for_each_decision_where_nobody_looks(guard: Guard, run: Run):
    guard.run(KEY, int, keep_for=60)
    guard.run(OTHER, int, keep_for=60)
    told(guard)
    lines = run("watch", "--for", "0.1", "--interval", "0.05").stdout.splitlines()

    assert len(lines) == 4
    assert KEY in lines[0] and "started" in lines[0]
    assert [json.loads(line)["kind"] for line in run("watch", "--for", "0", "--json").stdout.splitlines()] == [
        "claimed",
        "completed",
        "claimed",
        "completed",
    ]
    assert len(run("watch", "--for", "0", "--task", "shop.report").stdout.splitlines()) == 2


def test_bench_measures_and_leaves_nothing(guard: Guard, run: Run):
    facts = answer(run("bench", "--calls", "10", "--json"))

    assert facts["pairs"] == 10
    assert 0 < facts["milliseconds"]["both"]["p50"] <= facts["milliseconds"]["both"]["max"]
    assert "p99" in run("bench", "--calls", "10", "--seconds", "1").stdout
    wait_until(lambda: not list(guard.store.scan("taskguard:bench")))


def test_doctor_examines_the_store_alone(guard: Guard, run: Run):
    result = run("doctor")

    assert result.exit_code == 0
    assert result.stdout == "No problems found.\n"
