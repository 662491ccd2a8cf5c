"""Faults during a change of members, none of which loses a sample."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.contract.orders import Order
from headway.contract.runtime import CannotMeet, Checkpointed, EpochClosed, Restored, Stopped, Switched
from tests.elastic.devices import OVER_STREAMS
from tests.elastic.harness import Job
from tests.elastic.live import Live
from tests.elastic.test_exactness import losses_by_step
from tests.elastic.test_live import assert_exact, counting

__all__ = ["counting"]

STOPPED = 143


def held(counting: Callable[..., Live], size: int, **options: int) -> Live:
    """A live job of this size that waits within its fourth step."""
    live = counting(**options)
    live.start(size, steps=3)
    live.wait_until_held()
    return live


@pytest.mark.slow
def test_a_newcomer_with_another_model_is_told_why_and_the_others_go_on(
    counting: Callable[..., Live], tmp_path: Path
) -> None:
    live = held(counting, 2)
    arguments = list(live.job.arguments)
    live.job.arguments = [*arguments, "--samples", "51"]
    wrong = live.newcomers(live.members, 1)
    live.give(wrong)
    live.allow(4)
    assert live.until(lambda: live.processes["2.2"].code) == 1, live.output()
    assert "MEMBER_DIFFERS: this process differs from those that train: object 0, " in live.output()
    live.give(live.survivors(["1.0", "1.1"]))
    assert [one.lost_steps for one in live.wait_for_switch()] == [0, 0]
    assert_exact(live)


def test_an_order_of_an_old_generation_changes_nothing(counting: Callable[..., Live]) -> None:
    live = held(counting, 2)
    live.give(live.newcomers(live.members, 1))
    live.allow(3)
    live.wait_for_switch()
    stale = Order(generation=2, world_size=1, store="127.0.0.1:1", members={"1.0": 0})
    present = live.members, live.generation
    live.give(stale)
    live.members, live.generation = present
    assert_exact(live)
    assert {one.generation for one in live.messages(Switched)} == {2}


def test_a_newer_order_replaces_one_that_not_everyone_has_seen(counting: Callable[..., Live]) -> None:
    live = held(counting, 2)
    first = live.newcomers(live.members, 1)
    second = live.newcomers(live.members, 1)
    live.give(first)
    live.give(second)
    live.allow(4)
    live.wait_for_switch()
    assert live.until(lambda: live.processes["2.2"].handle.exitcode is not None)
    assert live.processes["2.2"].code == 0
    assert_exact(live)
    assert {one.generation for one in live.messages(Switched)} == {3}


@pytest.mark.parametrize("victim", ["1.0", "1.1", "2.2"])
def test_a_member_dies_before_the_others_come_to_meet_it(counting: Callable[..., Live], victim: str) -> None:
    live = held(counting, 2)
    order = live.newcomers(live.members, 1)
    live.kill(victim)
    live.give(order)
    live.allow(4)
    live.give(live.survivors([member for member in live.members if member != victim]))
    live.wait_for_switch()
    assert_exact(live)
    assert not live.messages(Restored)


@pytest.mark.slow
def test_members_that_do_not_meet_a_new_rank_say_so_and_go_on(counting: Callable[..., Live]) -> None:
    live = held(counting, 2)
    order = live.newcomers(live.members, 1)
    live.signal("2.2", signal.SIGSTOP)
    live.give(order)
    live.allow(4)
    live.until(lambda: {one.rank for one in live.messages(CannotMeet)} == {0, 1})
    assert {(one.generation, one.meeting) for one in live.messages(CannotMeet)} == {(1, 2)}
    live.give(live.survivors(["1.0", "1.1"]))
    back = live.wait_for_switch()
    assert [one.lost_steps for one in back] == [0, 0]
    assert max(one.pause_s for one in back) < 20, "although a group may take five minutes"
    live.kill("2.2")
    assert_exact(live)


def test_all_that_hold_the_state_die_in_a_switch(counting: Callable[..., Live]) -> None:
    live = held(counting, 1)
    order = live.newcomers(live.members, 2)
    live.kill("1.0")
    live.give(order)
    live.give(live.survivors(["2.1", "2.2"]))
    live.wait_for_switch()
    assert_exact(live)


@OVER_STREAMS
def test_a_rank_that_hangs_is_left_behind(counting: Callable[..., Live]) -> None:
    live = held(counting, 3)
    live.signal("1.1", signal.SIGSTOP)
    live.give(live.survivors(["1.0", "1.2"]))
    live.allow(4)
    live.wait_for_switch()
    live.kill("1.1")
    assert_exact(live)


def test_one_that_was_given_up_but_lives_leaves(counting: Callable[..., Live]) -> None:
    live = held(counting, 3)
    live.give(live.survivors(["1.2", "1.0"]))
    live.allow(4)
    live.wait_for_switch()
    live.until(lambda: live.processes["1.1"].code is not None)
    assert live.processes["1.1"].code == 0
    assert_exact(live)


@OVER_STREAMS  # there the main thread waits in C++ for the lost peer, and runs no handler
def test_a_request_to_stop_ends_the_wait_for_an_order(counting: Callable[..., Live]) -> None:
    live = held(counting, 3)
    live.kill("1.1")
    live.allow(4)
    live.members = ["1.0", "1.2"]
    for member in live.members:
        live.signal(member, signal.SIGTERM)
    assert live.wait() == [STOPPED, STOPPED], live.output()
    stops = {message.samples for message in live.messages(Stopped)}
    assert {message.samples for message in live.messages(Checkpointed)} == stops
    live.members = live._launch(2, 5, range(2), None)
    live.generation = 5
    assert_exact(live)
    assert [message.samples for message in live.messages(Restored)] == [max(stops)]


def test_a_newcomer_is_told_to_stop_while_it_waits(counting: Callable[..., Live]) -> None:
    live = held(counting, 1)
    live.newcomers(live.members, 1)
    live.signal("2.1", signal.SIGTERM)
    assert live.until(lambda: live.processes["2.1"].code) == STOPPED
    assert not live.messages(Checkpointed)
    assert_exact(live)


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 12))]
)
def test_random_changes_and_losses(counting: Callable[..., Live], seed: int) -> None:
    rng = random.Random(seed)
    samples, batch = rng.randint(20, 60), rng.randint(2, 20)
    most = rng.randint(1, 6) if rng.random() < 0.5 else batch
    bodies = -(-batch // most)  # of a step, at most
    # More steps than five changes can take, or there would be nothing left to change.
    shape = {"samples": samples, "batch": batch, "epochs": 50 * bodies * batch // samples + 2}
    live = counting("--max-local", most, **shape)
    live.start(rng.randint(1, 3), steps=2 * bodies)
    live.wait_until_held()
    for _ in range(5):
        live.allow(rng.randint(1, 4) * bodies)
        if rng.random() < 0.3:
            live.wait_until_held()
        kept = rng.sample(live.members, rng.randint(1, len(live.members)))
        if rng.random() < 0.5 and len(kept) < len(live.members):
            for victim in set(live.members) - set(kept):
                live.kill(victim)
            live.give(live.survivors(kept))
        else:
            live.give(live.newcomers(kept, rng.randint(0 if kept else 1, 4 - len(kept))))
        live.allow(4 * bodies)
        live.wait_for_switch()
    assert_exact(live, **shape)
    assert not live.messages(Restored)


@OVER_STREAMS
def test_the_losses_are_those_of_an_undisturbed_run(job: Callable[..., Job]) -> None:
    shape = {"samples": 301, "epochs": 3, "batch": 16}

    def trained(*arguments: object) -> Live:
        curve = job("curve.py", *arguments)
        curve.arguments = [*curve.arguments, "--result", str(curve.folder)]
        return Live(curve)

    undisturbed = trained()
    undisturbed.start(2)
    assert undisturbed.wait() == [0, 0]

    live = trained("--max-local", 5)
    live.start(2, steps=5)
    for change in (
        lambda: live.newcomers(live.members, 1),
        lambda: live.newcomers(live.members[1:], 0),
        lambda: live.newcomers(live.members[1:], 1),
        lambda: live.newcomers([], 2),
    ):
        live.wait_until_held()
        live.give(change())
        live.allow(6)
        live.wait_for_switch()
    live.allow_all()
    assert live.wait() == [0, 0]
    assert all(audit.exactly_once for audit in live.messages(EpochClosed))
    expected = losses_by_step(undisturbed.job.folder, **shape)
    assert expected[-1] < expected[0] / 2, "it must learn, or equal losses prove nothing"
    assert losses_by_step(live.job.folder, **shape) == pytest.approx(expected, rel=1e-4)
