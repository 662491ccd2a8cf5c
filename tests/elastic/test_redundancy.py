"""A lost rank of a sharded model whose shards have copies costs at most the step in progress."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from headway.contract.runtime import EXIT_RETRY, FirstStep, Restored
from tests.elastic.harness import Job
from tests.elastic.live import Live
from tests.elastic.losses import LOST_IN, Step, assert_one_step_was_lost, lose, steps


@pytest.fixture
def redundant(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job with a sharded model whose shards have copies."""

    def make(*arguments: object) -> Live:
        made = job("redundant.py", *arguments, HEADWAY_REDUNDANCY="neighbour")
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return Live(made)

    return make


@pytest.fixture
def undisturbed(redundant: Callable[..., Live]) -> Callable[..., list[Step]]:
    """Runs of each size and optimizer without a fault."""
    known: dict[tuple[int, str], list[Step]] = {}

    def run(size: int, optimizer: str = "adamw") -> list[Step]:
        if (size, optimizer) not in known:
            live = redundant("--optimizer", optimizer)
            live.start(size)
            assert live.wait() == [0] * size, live.output()
            known[size, optimizer] = steps(live.job.folder)
        return known[size, optimizer]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("place", ["forward", "backward", "before clipping", "exchange", "before commit"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_loss_before_the_commit_repeats_the_step(
    redundant: Callable[..., Live], undisturbed: Callable[..., list[Step]], victim: int, place: str
) -> None:
    live = redundant()
    lose(live, 3, (victim, LOST_IN, place))
    assert_one_step_was_lost(live, undisturbed(3), LOST_IN - 1)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["after commit", "after own step"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_loss_after_the_commit_keeps_the_step(
    redundant: Callable[..., Live], undisturbed: Callable[..., list[Step]], victim: int, place: str
) -> None:
    live = redundant()
    lose(live, 3, (victim, LOST_IN, place))
    assert_one_step_was_lost(live, undisturbed(3), LOST_IN)


@pytest.mark.slow
@pytest.mark.parametrize("unsure", [0, 2])
def test_a_rank_that_does_not_know_of_the_commit_takes_the_step_later(
    redundant: Callable[..., Live], undisturbed: Callable[..., list[Step]], unsure: int
) -> None:
    live = redundant()
    lose(live, 3, (1, LOST_IN, "after commit"), (unsure, LOST_IN, "unsure"))
    assert_one_step_was_lost(live, undisturbed(3), LOST_IN)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "fused"])
@pytest.mark.parametrize("place", ["forward", "after commit"])
def test_the_last_rank_alone_has_everything(
    redundant: Callable[..., Live], undisturbed: Callable[..., list[Step]], optimizer: str, place: str
) -> None:
    live = redundant("--optimizer", optimizer)
    lose(live, 2, (0, LOST_IN, place))
    assert_one_step_was_lost(live, undisturbed(2, optimizer), LOST_IN - (place == "forward"))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [(0, 1), (2, 0)])
def test_two_neighbours_at_once_are_lost_with_a_part(
    redundant: Callable[..., Live], lost: tuple[int, ...]
) -> None:
    live = redundant()
    lose(live, 3, *((one, LOST_IN, "forward") for one in lost))
    assert live.wait() == [EXIT_RETRY], live.output()
    assert "SHARDS_LOST" in live.output()
    assert all(one.live and one.sharded for one in live.messages(FirstStep))


def test_a_newcomer_lost_before_it_joins_costs_a_lone_rank_nothing(redundant: Callable[..., Live]) -> None:
    live = redundant()
    live.start(1, steps=3)
    live.wait_until_held()
    live.newcomers(live.members, 1)
    live.kill("2.1")
    live.give(live.survivors(["1.0"]))
    live.allow_all()
    live.wait_for_switch()
    assert live.wait() == [0], live.output()
    assert not live.messages(Restored)


def test_a_replicated_model_has_no_parts_to_copy(job: Callable[..., Job]) -> None:
    replicated = job("shards.py", "--sharded", 0, HEADWAY_REDUNDANCY="neighbour")
    replicated.arguments = [*replicated.arguments, "--result", str(replicated.folder)]
    started = replicated.start(2)
    assert started.wait() == [0, 0], started.output()
    assert "elastic.redundancy has no effect" in started.output()


@pytest.mark.slow
def test_every_other_rank_is_lost_at_once(
    redundant: Callable[..., Live], undisturbed: Callable[..., list[Step]]
) -> None:
    live = redundant()
    lose(live, 4, (1, LOST_IN, "forward"), (3, LOST_IN, "backward"))
    assert_one_step_was_lost(live, undisturbed(4), LOST_IN - 1)


@pytest.mark.slow
def test_copies_are_made_anew_after_each_change(redundant: Callable[..., Live]) -> None:
    live = redundant()
    live.start(2, steps=3)
    for change in (
        lambda: live.newcomers(live.members, 1),
        lambda: live.survivors(live.members[1:]),
        lambda: live.newcomers(live.members, 1),
        lambda: live.survivors(live.members[:2]),
        lambda: live.survivors(live.members[1:]),
    ):
        live.wait_until_held()
        order = change()
        if order.lost:
            for one in set(live.members) - set(order.members):
                live.kill(one)
        live.give(order)
        live.allow(3)
        assert all(one.lost_steps <= 1 for one in live.wait_for_switch())
    live.allow_all()
    assert live.wait() == [0], live.output()
    assert not live.messages(Restored)


def test_an_optimizer_that_is_not_elementwise_is_refused(redundant: Callable[..., Live]) -> None:
    live = redundant("--optimizer", "rprop")
    live.start(2)
    assert live.wait() != [0, 0]
    assert re.search("REDUNDANCY_UNSUPPORTED: .* not with Rprop", live.output())


def test_a_closure_is_refused(redundant: Callable[..., Live]) -> None:
    live = redundant("--closure")
    live.start(2)
    assert live.wait() != [0, 0]
    assert "REDUNDANCY_UNSUPPORTED: optimizer.step(closure)" in live.output()
