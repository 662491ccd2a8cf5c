"""A script learns of changes of members and of stops by `run.before_change`, `after_change` and `preemption`."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headway.contract.changes import (
    STOP_FILE,
    ChangeKind,
    ChangeReason,
    StopNotice,
    boot_clock_s,
    stop_to_json,
)
from tests.elastic.harness import Job
from tests.elastic.live import Live

GROWS = ChangeReason(ChangeKind.SCHEDULER, "there is room")
DRAINS = ChangeReason(ChangeKind.DRAIN, "node-1 is draining")


@pytest.fixture
def telling(job: Callable[..., Job]) -> Live:
    told = job("told.py")
    told.arguments = ["--result", str(told.folder)]
    return Live(told)


def told(live: Live, member: str) -> list[dict[str, Any]]:
    """Everything that the callbacks of a process saw."""
    file = live.job.folder / f"told-{member}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def change(
    why: ChangeReason, old: int | None, new: int, ranks: tuple[int | None, int | None], **counts: int
) -> Any:
    return {
        "kind": why.kind,
        "reason": why.reason,
        "old_world_size": old,
        "new_world_size": new,
        "old_rank": ranks[0],
        "new_rank": ranks[1],
        "joined": 0,
        "left": 0,
        **counts,
    }


def announce(live: Live, member: str, notice: StopNotice) -> None:
    """Write a stop for one process and send it SIGTERM, as its agent does."""
    (live.processes[member].cohort.control / STOP_FILE).write_text(stop_to_json(notice))
    live.signal(member, signal.SIGTERM)


def test_members_see_growth_shrinking_and_the_stop_of_one_of_them(telling: Live) -> None:
    live = telling
    live.start(1, steps=3)
    live.play([lambda: replace(live.newcomers(["1.0"], 1), why=GROWS)], steps=4)
    live.play([lambda: replace(live.newcomers(["2.1"], 0), why=DRAINS)], steps=4)
    live.wait_until_held()
    announce(live, "2.1", StopNotice(grace_s=60.0, kill_at_s=boot_clock_s() + 60.0, why=DRAINS))
    live.allow_all()
    assert live.wait() == [143], live.output()
    first, second = told(live, "1.0"), told(live, "2.1")
    assert [one["when"] for one in first] == ["before", "after", "before"]
    assert [one["change"] for one in first] == [
        change(GROWS, 1, 2, (0, 0), joined=1),
        change(GROWS, 1, 2, (0, 0), joined=1),
        change(DRAINS, 2, 1, (0, None), left=1),
    ]
    assert [one["when"] for one in second] == ["after", "before", "after", "before"]
    assert [one["change"] for one in second] == [
        change(GROWS, 1, 2, (None, 1), joined=1),
        change(DRAINS, 2, 1, (1, 0), left=1),
        change(DRAINS, 2, 1, (1, 0), left=1),
        change(DRAINS, 1, 0, (0, None), left=1),
    ]
    for one in (*first, *second):
        before = one["when"] == "before"
        size = one["change"]["old_world_size" if before else "new_world_size"]
        assert one["members"] == one["world_size"] == size
        assert one["rank"] == one["change"]["old_rank" if before else "new_rank"]
    *changes, (kind, reason, left_s) = [one["stop"] for one in second]
    assert changes == [None, None, None]
    assert (kind, reason) == (DRAINS.kind, DRAINS.reason)
    assert 0 < left_s < 60


def test_ranks_agree_on_the_reason_of_a_stop_that_only_one_of_them_was_told(telling: Live) -> None:
    live = telling
    live.start(2, steps=3)
    live.wait_until_held()
    announce(live, "1.1", StopNotice(grace_s=60.0, kill_at_s=boot_clock_s() + 60.0, why=DRAINS))
    live.allow_all()
    assert live.wait() == [143, 143], live.output()
    ends = [told(live, member) for member in ("1.0", "1.1")]
    assert [[one["when"] for one in end] for end in ends] == [["before"], ["before"]]
    assert [end[0]["stop"][:2] for end in ends] == [[DRAINS.kind, DRAINS.reason]] * 2
    assert all(0 < end[0]["stop"][2] < 60 for end in ends)
    assert ends[0][0]["steps"] == ends[1][0]["steps"]


def test_a_rank_that_an_order_takes_out_does_not_stop_the_others_with_it(telling: Live) -> None:
    live = telling
    live.start(2, steps=3)
    live.wait_until_held()
    live.give(replace(live.newcomers(["1.0"], 0), why=DRAINS))
    announce(live, "1.1", StopNotice(grace_s=60.0, kill_at_s=boot_clock_s() + 60.0, why=DRAINS))
    live.allow_all()
    assert live.wait() == [0], live.output()
    assert [one["when"] for one in told(live, "1.0")] == ["before", "after"]


def test_stop_by_a_signal_alone_has_no_deadline(telling: Live) -> None:
    live = telling
    live.start(1, steps=3)
    live.wait_until_held()
    live.signal("1.0", signal.SIGTERM)
    live.allow_all()
    assert live.wait() == [143], live.output()
    ((kind, _, left_s),) = [one["stop"] for one in told(live, "1.0")]
    assert (kind, left_s) == (ChangeKind.SIGNAL, None)


def test_survivors_of_a_loss_are_told_after_it(telling: Live) -> None:
    live = telling
    live.start(2, steps=3)
    live.wait_until_held()
    live.kill("1.1")
    live.give(live.survivors(["1.0"]))
    live.allow_all()
    assert live.wait() == [0], live.output()
    (one,) = told(live, "1.0")
    assert one["when"] == "after"
    assert one["change"] == change(ChangeReason(ChangeKind.LOSS), 2, 1, (0, 0), left=1)


def test_error_in_a_callback_ends_the_rank_and_names_the_callback(telling: Live) -> None:
    live = telling
    live.start(1, steps=3, RAISES="before")
    live.wait_until_held()
    live.signal("1.0", signal.SIGTERM)
    live.allow_all()
    assert live.wait() == [1]
    assert (
        "CALLBACK_FAILED: before, a callback of run.before_change, raised ZeroDivisionError" in live.output()
    )
