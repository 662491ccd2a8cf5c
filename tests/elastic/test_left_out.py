"""Scripts that leave out the backward pass of a part of a batch: no step follows, as on one rank that takes the whole batch."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from headway.contract.runtime import BATCH_LEFT_OUT, Warned
from tests.elastic.harness import Generation, Job, codes
from tests.elastic.live import Live
from tests.elastic.test_live import lose

BAD = (5, 17, 18, 40)


def ends(output: str) -> list[list[float]]:
    """The weights and the learning rate with which each rank ended."""
    found = re.findall(r"ends ([-\w. ]+) rate (\S+)", output)
    return [[*map(float, weights.split()), float(rate)] for weights, rate in found]


def assert_ends_as(trained: Generation, expected: list[float], size: int) -> None:
    assert codes(trained) == [0] * size, trained.output()
    found = ends(trained.output())
    assert len(found) == size
    for one in found:
        assert one == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["before", "after", "unconditional", "scaler"])
@pytest.mark.parametrize(("size", "max_local"), [(1, 2), (2, 6), (3, 1)])
def test_batch_with_a_part_left_out_takes_no_step_on_any_rank(
    job: Callable[..., Job], way: str, size: int, max_local: int
) -> None:
    expected = ends(job("leaving_out.py", "--way", way, "--bad", *BAD).run(1).output())[0]
    assert expected != pytest.approx(ends(job("leaving_out.py", "--way", way).run(1).output())[0], abs=1e-3)
    trained = job("leaving_out.py", "--way", way, "--bad", *BAD, "--max-local", max_local).run(size)
    assert_ends_as(trained, expected, size)
    said = [one for rank in range(size) for one in trained.messages(Warned, rank)]
    assert {one.code for one in said} == {BATCH_LEFT_OUT}


@pytest.mark.slow
@pytest.mark.parametrize(("size", "max_local"), [(2, 6), (3, 6)])
def test_left_out_batch_keeps_the_gradients_of_an_own_accumulation(
    job: Callable[..., Job], size: int, max_local: int
) -> None:
    options = ["--every", 2, "--bad", *BAD]
    expected = ends(job("leaving_out.py", *options).run(1).output())[0]
    assert_ends_as(job("leaving_out.py", *options, "--max-local", max_local).run(size), expected, size)


@pytest.mark.slow
def test_changes_and_a_loss_among_batches_that_are_left_out_cost_nothing(job: Callable[..., Job]) -> None:
    expected = ends(job("leaving_out.py", "--bad", *BAD).run(1).output())[0]
    live = Live(job("leaving_out.py", "--bad", *BAD, "--max-local", 3))
    live.start(1, steps=4)
    live.play(
        [
            lambda: live.newcomers(live.members, 1),
            lambda: lose(live, live.members[1]),
            lambda: live.newcomers(live.members, 1),
        ],
        steps=12,
    )
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    for one in ends(live.output()):
        assert one == pytest.approx(expected, abs=1e-6)


def test_batch_that_every_rank_leaves_out_is_the_scripts_own_and_is_not_named(
    job: Callable[..., Job],
) -> None:
    trained = job("leaving_out.py", "--bad", *range(48)).run(2)
    assert codes(trained) == [0, 0], trained.output()
    assert not trained.messages(Warned)
