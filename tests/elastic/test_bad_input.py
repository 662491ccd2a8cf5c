"""Scripts, models and data that are not as one would wish, in jobs whose members change."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from headway.contract.orders import Order
from headway.contract.runtime import Checkpointed, Completed, EpochClosed, Left, Restored, Switched
from headway.train.data.position import order
from tests.elastic.harness import PATIENCE_S, Generation, Job, codes
from tests.elastic.live import Live
from tests.elastic.test_live import assert_exact, counting

__all__ = ["counting"]

KILLED = -signal.SIGKILL


@pytest.fixture
def odd(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job of the odd script."""

    def make(*arguments: object) -> Live:
        made = job("odd.py", *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return Live(made)

    return make


def switch(live: Live, order: Order, steps: int = 4) -> list[Switched]:
    """Give the order, let rank 0 take so many steps more, and wait until all members train."""
    live.give(order)
    live.allow(steps)
    return live.wait_for_switch()


def without(live: Live, *members: str) -> list[str]:
    return [one for one in live.members if one not in members]


def lose(live: Live, *members: str) -> Order:
    for member in members:
        live.kill(member)
    return live.survivors(without(live, *members))


def together(made: Job, size: int) -> Generation:
    """Run the odd script until every rank has ended by itself."""
    made.arguments = [*made.arguments, "--result", str(made.folder)]
    started = made.start(size)
    for process in started.processes:
        process.join(PATIENCE_S)
    return started


# Models and optimizers


@pytest.mark.slow
def test_ranks_with_different_models_are_refused_at_the_start(job: Callable[..., Job]) -> None:
    started = together(job("odd.py", "--wider-on", 1), 3)
    assert codes(started) == [1, 1, 1], started.output()
    assert started.output().count("ValueError: the ranks have made different models") == 3


def test_an_optimizer_without_state_and_rate(odd: Callable[..., Live]) -> None:
    live = odd("--stateless")
    live.start(1, steps=2)
    for change in (
        lambda: live.newcomers(live.members, 1),
        lambda: lose(live, live.members[0]),
        lambda: live.newcomers([], 2),
    ):
        live.wait_until_held()
        switch(live, change())
    assert_exact(live)


def test_buffers_are_those_of_rank_0_in_every_step(odd: Callable[..., Live]) -> None:
    shape = {"samples": 48, "epochs": 8, "batch": 12}
    live = odd("--norm", "--samples", 48, "--epochs", 8, "--batch", 12)
    live.start(2, steps=3)
    for change in (
        lambda: live.newcomers(live.members, 1),
        lambda: lose(live, live.members[0]),
        lambda: live.newcomers(live.members[1:], 1),
        lambda: lose(live, live.members[1]),
        lambda: live.newcomers(live.members, 2),
    ):
        live.wait_until_held()
        switch(live, change(), steps=5)
    assert_exact(live, **shape)
    found = buffers_of(live)
    for generation in (2, 4):
        del found[
            generation, max(samples for one, samples in found if one == generation)
        ]  # the step of the loss
    assert all(len(set(means)) == 1 for means in found.values()), found
    sizes = {
        generation: max(len(found[key]) for key in found if key[0] == generation) for generation, _ in found
    }
    assert sizes == {1: 2, 2: 3, 3: 2, 4: 2, 5: 1, 6: 3}
    means = [found[key][0] for key in sorted(found)]
    assert len(set(means)) == len(means), "the buffers go on changing"


def buffers_of(live: Live) -> dict[tuple[int, int], list[str]]:
    """Return each rank's buffer at the start of steps, by generation and samples committed."""
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for notes in live.job.folder.glob("norms-*.txt"):
        for line in notes.read_text().splitlines():
            generation, samples, mean = line.split()
            found[int(generation), int(samples)].append(mean)
    return found


# Data


def test_a_dataset_smaller_than_the_batch(counting: Callable[..., Live]) -> None:
    shape = {"samples": 5, "epochs": 25, "batch": 8}
    live = counting(**shape)
    live.start(2, steps=2)
    for change in (
        lambda: live.newcomers(live.members, 1),
        lambda: lose(live, live.members[0]),
        lambda: live.newcomers(live.members[1:], 0),
        lambda: live.newcomers(live.members, 2),
    ):
        live.wait_until_held()
        switch(live, change())
    assert_exact(live, **shape)


@pytest.mark.parametrize("batch", [1, 2])
def test_more_ranks_than_samples_in_a_step(counting: Callable[..., Live], batch: int) -> None:
    shape = {"samples": 21, "epochs": 4, "batch": batch}
    live = counting(**shape)
    live.start(1, steps=2)
    for change in (
        lambda: live.newcomers(live.members, 3),
        lambda: lose(live, live.members[0], live.members[3]),
        lambda: live.newcomers(live.members[1:], 2),
    ):
        live.wait_until_held()
        switch(live, change())
    assert_exact(live, **shape)


def test_workers_that_fetch_ahead_outlive_a_switch(odd: Callable[..., Live]) -> None:
    live = odd("--workers", 2, "--max-local", 3, "--epochs", 4)
    live.start(1, steps=4)
    for change in (
        lambda: live.newcomers(live.members, 1),
        lambda: live.newcomers(live.members[1:], 1),
        lambda: lose(live, live.members[0]),
    ):
        live.wait_until_held()
        switch(live, change(), steps=6)
    assert_exact(live, epochs=4)


# Moments


@pytest.mark.parametrize("body", [2, 3, 4])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_is_lost_in_the_middle_of_a_step_that_accumulates(
    counting: Callable[..., Live], body: int, victim: int
) -> None:
    shape = {"samples": 50, "epochs": 3, "batch": 12}
    live = counting("--max-local", 2, **shape)
    live.start(2, steps=2 * 3 + body - 1)  # a step has three bodies
    live.wait_until_held()
    switched = switch(live, lose(live, live.members[victim]), steps=6)
    assert [one.lost_steps for one in switched] == [1]
    assert_exact(live, **shape)
    assert not live.messages(Restored)


def test_one_loss_after_the_other(counting: Callable[..., Live]) -> None:
    live = counting(epochs=5)
    live.start(4, steps=3)
    live.wait_until_held()
    switch(live, lose(live, "1.0"))
    live.wait_until_held()
    switch(live, lose(live, "1.2"))
    live.wait_until_held()
    switch(live, lose(live, "1.1"))
    assert live.members == ["1.3"]
    assert_exact(live, epochs=5)
    assert not live.messages(Restored)


@pytest.mark.parametrize("second", ["1.0", "1.1", "1.3"])
def test_a_loss_while_another_is_made_good(counting: Callable[..., Live], second: str) -> None:
    live = counting()
    live.start(4, steps=3)
    live.wait_until_held()
    first = lose(live, "1.2")
    live.signal(second, signal.SIGSTOP)  # so that the others wait for it to meet
    live.give(first)
    live.allow(4)
    switch(live, lose(live, second))
    assert_exact(live)
    assert not live.messages(Restored)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_is_lost_while_the_script_evaluates_between_epochs(
    counting: Callable[..., Live], victim: int
) -> None:
    live = counting()
    live.start(3, FAULTS=json.dumps([[victim, "after 0", "SIGKILL"]]))
    lost = f"1.{victim}"
    live.until(lambda: live.processes[lost].code)
    assert live.processes[lost].code == KILLED
    live.give(live.survivors(without(live, lost)))
    assert {one.samples for one in live.wait_for_switch()} == {50}
    assert_exact(live)
    assert not live.messages(Restored)


def test_a_rank_is_lost_while_the_script_evaluates_after_the_last_epoch(
    counting: Callable[..., Live],
) -> None:
    live = counting(epochs=2)
    live.start(3, FAULTS=json.dumps([[0, "after 1", "SIGKILL"]]))
    live.until(lambda: live.processes["1.0"].code)
    live.give(live.survivors(["1.1", "1.2"]))
    live.wait_for_switch()
    assert_exact(live, epochs=2)
    assert [message.samples for message in live.messages(Checkpointed)] == [100]


def counts_of(live: Live, size: int) -> list[torch.Tensor]:
    return [
        torch.load(live.job.folder / f"{rank}-of-{size}.pt", map_location="cpu", weights_only=True)
        for rank in range(size)
    ]


def counts_after(epochs: int, steps: int) -> torch.Tensor:
    """Return the counting model after epochs whose loops are left after `steps` steps of 8 samples."""
    counts = torch.zeros(50, dtype=torch.float64)
    for epoch in range(epochs):
        counts[torch.from_numpy(order(50, seed=7, epoch=epoch)[: 8 * steps])] -= 1 / 8
    return counts


def test_switches_of_a_script_that_leaves_its_loop(odd: Callable[..., Live]) -> None:
    live = odd("--leave-after", 3, "--epochs", 8)
    live.start(2, steps=3)  # held in the first step of the second epoch
    for change, steps in (
        (lambda: live.newcomers(live.members, 1), 4),  # held in the second of the third
        (lambda: lose(live, live.members[1]), 5),
        (lambda: live.newcomers(live.members[1:], 1), 4),
    ):
        live.wait_until_held()
        switch(live, change(), steps)
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    for counts in counts_of(live, 2):
        torch.testing.assert_close(counts, counts_after(8, 3), rtol=1e-9, atol=1e-9)
    assert not live.messages(EpochClosed), "what was not whole is not audited"
    assert {message.samples for message in live.messages(Completed)} == {50 * 8}


@pytest.mark.parametrize("victim", ["1.0", "1.1", "1.2"])
def test_a_loss_in_the_step_after_which_the_script_leaves_costs_that_step_at_most(
    odd: Callable[..., Live], victim: str
) -> None:
    """The script is not there any more to do it again. Those who are left are equal, or say why they cannot be: one
    may have been a step behind, and still be in its loop.
    """
    live = odd("--leave-after", 3, "--epochs", 3)
    live.start(3, steps=5)
    live.wait_until_held()
    switch(live, lose(live, victim), steps=2)
    live.allow_all()
    if live.wait() == [0, 0]:
        first, second = counts_of(live, 2)
        assert torch.equal(first, second)
        assert int((first - counts_after(3, 3)).ne(0).sum()) in {0, 8}
    else:
        assert "the ranks are not in the same step" in live.output()
        assert not live.messages(Completed)


@pytest.mark.parametrize("lonely", [0, 1])
def test_a_rank_that_leaves_its_loop_alone_is_an_error(job: Callable[..., Job], lonely: int) -> None:
    """Its gradients would go into those of other steps, and nobody would know."""
    started = together(job("odd.py", "--leaves-alone", lonely), 2)
    assert all(codes(started)), started.output()
    assert "RuntimeError: the ranks are not in the same step" in started.output()
    assert not started.messages(Completed)


# Saves


def saving(live: Live) -> bool:
    """Return whether a process is writing a part of a checkpoint, which then has a name of its own."""
    writers = {part.suffix[1:] for part in live.job.checkpoints.glob("*/.*")}
    return any(str(one.handle.pid) in writers for one in live.processes.values() if one.code is None)


def step_until_saving(live: Live) -> None:
    """Let rank 0 take steps, one by one, until it is found writing a checkpoint.

    As a step begins it says that it is time, unless it writes already, and as that step ends it saves. A save may have
    come to its end unseen: the next is as good.
    """

    def seen() -> bool:
        found = saving(live)
        if not found and live.held:
            live.allow(1)
        return found

    live.until(seen)


SLOW_SAVES = ("--ballast-mb", 32, "--epochs", 10)


def test_switches_while_checkpoints_are_written(odd: Callable[..., Live]) -> None:
    live = odd(*SLOW_SAVES)
    live.start(1, steps=3, HEADWAY_CHECKPOINT_EVERY_S="0.001")
    for change in (
        lambda: live.newcomers(live.members, 1),
        lambda: live.newcomers(live.members[1:], 1),  # rank 0 leaves while it writes
        lambda: live.newcomers([], 2),
    ):
        live.wait_until_held()
        following = change()
        step_until_saving(live)
        switch(live, following)
    assert_exact(live, epochs=10)
    assert live.messages(Checkpointed)[-1].samples == 10 * 50
    assert [left.joined for left in live.messages(Left)] == [3, 4, 4]


def test_a_rank_is_killed_while_it_writes_a_checkpoint(odd: Callable[..., Live]) -> None:
    live = odd(*SLOW_SAVES)
    live.start(2, steps=2, HEADWAY_CHECKPOINT_EVERY_S="0.001")
    step_until_saving(live)
    switch(live, lose(live, "1.0"))
    live.wait_until_held()
    assert_exact(live, epochs=10)
    assert not live.messages(Restored)
    assert live.messages(Checkpointed)[-1].samples == 10 * 50
    whole = [one for one in live.job.checkpoints.iterdir() if (one / "manifest.json").exists()]
    assert whole
    live.members = live._launch(1, live.generation + 1, range(1), None)
    assert live.wait() == [0], live.output()
    assert [restored.samples for restored in live.messages(Restored)] == [10 * 50]


@pytest.mark.parametrize("victim", ["1.0", "1.1"])
def test_a_rank_is_lost_during_the_last_save(odd: Callable[..., Live], victim: str) -> None:
    live = odd("--hold-saves", "--epochs", 1)
    live.start(3, steps=1)
    live.wait_until_held()
    (live.job.folder / "hold").touch()
    live.allow_all()
    live.until(lambda: any(live.job.folder.glob("saving-*")))
    following = lose(live, victim)
    (live.job.folder / "hold").unlink()
    live.give(following)
    live.wait_for_switch()
    assert_exact(live, epochs=1)
    assert [message.samples for message in live.messages(Checkpointed)] == [50]
