"""Work on parts by several threads."""

from __future__ import annotations

import threading

import pytest

from headway.train.checkpoint.threads import for_each


def test_results_are_in_the_order_of_the_items() -> None:
    later = threading.Event()

    def act(item: int) -> int:
        assert later.wait(60) if item == 0 else not later.set()
        return item * 2

    assert for_each(act, [0, 1, 2], threads=2) == [0, 2, 4]
    assert for_each(act, []) == []


def test_only_the_caller_works_until_work_is_urgent() -> None:
    urgent, seen = threading.Event(), []

    def act(item: int) -> None:
        seen.append(threading.current_thread())

    for_each(act, list(range(20)), urgent, threads=4)
    assert set(seen) == {threading.current_thread()}
    assert urgent.is_set(), "helpers that wait have ended"


def test_others_help_once_work_is_urgent() -> None:
    urgent, together = threading.Event(), threading.Barrier(3, timeout=60)

    def act(item: int) -> None:
        urgent.set()
        together.wait()

    for_each(act, [1, 2, 3], urgent, threads=3)
    assert not together.broken


def test_error_of_the_first_failed_item_is_raised_when_no_thread_works_any_more() -> None:
    together, ended = threading.Barrier(2, timeout=60), []

    def act(item: int) -> None:
        if item < 2:
            together.wait()
        ended.append(item)
        raise OSError(item)

    with pytest.raises(OSError, match="0"):
        for_each(act, list(range(9)), threads=2)
    assert {0, 1} <= set(ended)
    assert len(ended) < 9
