"""The conformance suite of a history: the promises of `taskguard.history.History` as tests.

Inherit from it in a test class and define one fixture:

history  a history that is empty, or has a namespace of its own

Like `StoreContract`, it imports no test runner.
"""

from __future__ import annotations

import time

from taskguard.history import MOST, History, Line

SLACK = 120.0
"""Seconds by which the clocks of a store and of this host may differ."""


def lines(count: int, *, key: str = "key", notable: bool = False) -> list[Line]:
    return [Line(key, f'["text", "{key}", {number}]', notable) for number in range(count)]


def texts(found: list[Line]) -> list[str]:
    return [line.text for line in found]


class HistoryContract:
    def test_lines_come_back_in_the_order_in_which_they_were_added(self, history: History) -> None:
        history.add(lines(30))
        history.add(lines(3, notable=True))

        assert texts(history.read()) == texts(lines(30) + lines(3))

    def test_a_line_says_whether_it_is_notable(self, history: History) -> None:
        history.add([*lines(1, key="ordinary"), *lines(1, key="notable", notable=True)])

        assert {line.key: line.notable for line in history.read()} == {"ordinary": False, "notable": True}

    def test_the_newest_are_read(self, history: History) -> None:
        history.add(lines(20))
        history.add(lines(20, notable=True))

        assert texts(history.read(limit=5)) == texts(lines(20)[-5:])
        assert [line.notable for line in history.read(limit=5)] == [True] * 5

    def test_those_of_a_prefix_are_read(self, history: History) -> None:
        history.add([*lines(5, key="a:1"), *lines(5, key="b:1"), *lines(5, key="a:2", notable=True)])

        assert [line.key for line in history.read("a:")] == ["a:1"] * 5 + ["a:2"] * 5
        assert texts(history.read("b:1", limit=2)) == texts(lines(5, key="b:1")[-2:])
        assert history.read("c") == []

    def test_a_prefix_is_taken_as_it_is(self, history: History) -> None:
        history.add([line for key in ("100%", "1000", "a_b", "axb", "ä", "A_b") for line in lines(1, key=key)])

        assert [line.key for line in history.read("100%")] == ["100%"]
        assert [line.key for line in history.read("a_")] == ["a_b"]
        assert [line.key for line in history.read("ä")] == ["ä"]

    def test_a_line_is_as_old_as_it_says(self, history: History) -> None:
        history.add([Line("key", '["now", "key"]', False), Line("key", '["old", "key"]', False, age=3600)])
        old, now = history.read()

        assert texts([old, now]) == ['["old", "key"]', '["now", "key"]']
        assert abs(now.at - old.at - 3600) < 0.01
        assert abs(now.at - time.time()) < SLACK

    def test_the_last_lines_of_a_process_arrive(self, history: History) -> None:
        history.add(lines(2), last=True)

        assert texts(history.read()) == texts(lines(2))

    def test_nothing_to_add_is_nothing(self, history: History) -> None:
        history.add([])

        assert history.read() == []

    def test_neither_log_grows_without_end_nor_crowds_out_the_other(self, history: History) -> None:
        history.add(lines(50, notable=True))
        for _ in range(6 * MOST // 500):
            history.add(lines(500))
        kept = history.read(limit=10 * MOST)

        assert MOST <= len([line for line in kept if not line.notable]) <= 3 * MOST
        assert len([line for line in kept if line.notable]) == 50
