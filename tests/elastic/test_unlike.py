"""Ranks that are not alike are refused with what differs, and those that train go on."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from tests.elastic.harness import Job, codes
from tests.elastic.live import Live

STOPPED = 143


@pytest.fixture
def unlike(job: Callable[..., Job]) -> Callable[..., Job]:
    """Makes a job of `unlike.py`."""

    def make(*arguments: object) -> Job:
        made = job("unlike.py", *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return made

    return make


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("samples", "the ranks have different data (samples of the data: 40 on rank 0, 48 on rank 1)"),
        ("seed", "the ranks have different data (seed of the data: 7 on rank 0, 8 on rank 1)"),
        (
            "frozen",
            "different models, so they cannot be kept equal (object 0, requires_grad of 1.bias: True on rank 0, False",
        ),
    ],
)
def test_first_ranks_that_differ_end_before_the_first_step_with_both_values(
    unlike: Callable[..., Job], what: str, said: str
) -> None:
    ended = unlike("--unlike", what).run(2)
    assert 1 in codes(ended), ended.output()
    assert said in ended.output()


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (
            ["--group-at", 2],
            [],
            "parameter groups of SGD (object 1): 2 (of 2, 2 parameters) on the ranks that train, 1 (of 2 parameters) here.",
        ),
        ([], ["--samples", "48"], "samples of the data: 40 on the ranks that train, 48 here."),
        ([], ["--seed", "8"], "seed of the data: 7 on the ranks that train, 8 here."),
    ],
    ids=["groups", "samples", "seed"],
)
def test_newcomer_that_differs_names_it_and_the_others_end_as_undisturbed(
    unlike: Callable[..., Job], first: list[object], then: list[str], said: str
) -> None:
    alone = unlike(*first)
    assert codes(alone.run(1)) == [0]
    live = Live(unlike(*first))
    live.start(1, steps=5)
    live.wait_until_held()
    live.job.arguments = [*live.job.arguments, *then]
    live.give(live.newcomers(live.members, 1))
    live.allow(3)
    assert live.until(lambda: live.processes["2.1"].code) == 1, live.output()
    assert f"MEMBER_DIFFERS: this process differs from those that train: {said}" in live.output()
    live.give(live.survivors(["1.0"]))
    live.allow_all()
    assert live.wait() == [0], live.output()
    expected, ended = (torch.load(one.folder / "0-of-1.pt") for one in (alone, live.job))
    torch.testing.assert_close(ended, expected, rtol=0, atol=1e-6)


def test_restart_with_fewer_groups_names_both_numbers(unlike: Callable[..., Job]) -> None:
    made = unlike("--group-at", 2)
    stopped = made.run(1, FAULTS=json.dumps([[0, 5, "SIGTERM"]]))
    assert codes(stopped) == [STOPPED], stopped.output()
    ended = made.run(1)
    assert codes(ended) == [1], ended.output()
    assert "SGD had 2 parameter groups when it was saved, and has 1 here; make all groups" in ended.output()
    assert "script has changed" not in ended.output()
