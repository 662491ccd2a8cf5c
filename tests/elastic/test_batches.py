"""The global batch changes while a job trains: nothing is trained twice, and the learning rate goes with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.contract.orders import BatchPlan, Order
from headway.contract.runtime import (
    BatchChanged,
    Checkpointed,
    Completed,
    EpochClosed,
    Progress,
    Restored,
    Switched,
)
from headway.train.data.position import order
from tests.elastic.harness import Job, codes
from tests.elastic.live import Live

SAMPLES, EPOCHS, BATCH, MOST = 96, 3, 8, 64


@pytest.fixture
def adaptive(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job that counts its samples and whose batch may change."""

    def make(rule: str, *arguments: object) -> Live:
        env = {
            "HEADWAY_GLOBAL_BATCH": str(BATCH),
            "HEADWAY_MAX_GLOBAL_BATCH": str(MOST),
            "HEADWAY_LR_RULE": rule,
        }
        shape = ["--samples", SAMPLES, "--epochs", EPOCHS, "--until", "epochs", *arguments]
        counted = job("count.py", *shape, **env)
        counted.arguments = [*counted.arguments, "--result", str(counted.folder)]
        return Live(counted)

    return make


def with_batch(live: Live, batch: int, kept: list[str] | None = None, newcomers: int = 0) -> Order:
    """An order of another batch, for the present members unless others are given."""
    kept = live.members if kept is None else kept
    return replace(live.newcomers(kept, newcomers), batch=BatchPlan(global_batch=batch))


def counts_after(changes: list[tuple[int, int, float]]) -> torch.Tensor:
    """Return the expected result of `count.py` after changes (samples, batch, factor), in their order.

    From `samples` on, steps take `batch` samples at `factor`.
    """
    expected = torch.zeros(SAMPLES, dtype=torch.float64)
    place, following = 0, changes
    for epoch in range(EPOCHS):
        taken = torch.from_numpy(order(SAMPLES, seed=7, epoch=epoch))
        while place < (epoch + 1) * SAMPLES:
            while len(following) > 1 and following[1][0] <= place:
                following = following[1:]
            _, batch, factor = following[0]
            start = place - epoch * SAMPLES
            step = taken[start : start + batch]
            expected[step] -= factor / len(step)
            place += len(step)
    return expected


def assert_counts(folder: Path, size: int, changes: list[tuple[int, int, float]]) -> None:
    for rank in range(size):
        counts = torch.load(folder / f"{rank}-of-{size}.pt", map_location="cpu", weights_only=True)
        torch.testing.assert_close(counts, counts_after(changes), rtol=1e-9, atol=1e-9)


def assert_exact(live: Live, changes: list[tuple[int, int, float]]) -> None:
    live.allow_all()
    assert live.wait() == [0] * len(live.members), live.output()
    assert_counts(live.job.folder, len(live.members), changes)
    audits = live.messages(EpochClosed)
    assert {audit.epoch for audit in audits} == set(range(EPOCHS))
    assert all(audit.exactly_once and audit.samples_seen == SAMPLES for audit in audits)
    assert {message.samples for message in live.messages(Completed)} == {SAMPLES * EPOCHS}


def ordered(live: Live, batch: int, newcomers: int = 0, bodies: int = 3) -> tuple[int, int, float]:
    """Have the batch changed; from where on, to what, at which factor. `bodies`: two steps, and into the next."""
    live.wait_until_held()
    live.give(with_batch(live, batch, newcomers=newcomers))
    live.allow(bodies)
    switched = live.wait_for_switch()
    assert len({one.samples for one in switched}) == 1
    said = live.until(
        lambda: [one for one in live.messages(BatchChanged) if one.generation == live.generation]
    )
    assert len(said) == 1, "only rank 0 says so"
    assert said[0].samples == switched[0].samples
    return said[0].samples, said[0].global_batch, said[0].lr_factor


@pytest.mark.parametrize(("rule", "factor"), [("linear", 2.5), ("sqrt", 2.5**0.5), ("none", 1.0)])
@pytest.mark.parametrize("limit", [[], ["--max-local", 3]], ids=["whole", "accumulated"])
def test_another_batch_in_place(
    adaptive: Callable[..., Live], rule: str, factor: float, limit: list[object]
) -> None:
    live = adaptive(rule, *limit)
    live.start(2, steps=3)
    bodies = 12 if limit else 3
    first = ordered(live, 20, bodies=bodies)
    assert first[1:] == (20, pytest.approx(factor))
    second = ordered(live, BATCH, bodies=bodies)
    assert second[1:] == (BATCH, 1.0)
    assert all(one.lost_steps == 0 and one.sync_bytes == 0 for one in live.messages(Switched))
    assert_exact(live, [(0, BATCH, 1.0), first, second])


def test_no_more_than_the_bound(adaptive: Callable[..., Live]) -> None:
    live = adaptive("none")
    live.start(1, steps=3)
    change = ordered(live, 10 * MOST)
    assert change[1] == MOST
    assert_exact(live, [(0, BATCH, 1.0), change])


def test_newcomers_take_the_batch_of_the_order_that_they_were_started_before(
    adaptive: Callable[..., Live],
) -> None:
    live = adaptive("linear")
    live.start(1, steps=3)
    change = ordered(live, 24, newcomers=1)
    assert_exact(live, [(0, BATCH, 1.0), change])


def test_four_slots_and_their_batch_come_with_one_order(adaptive: Callable[..., Live]) -> None:
    """Eight times the batch at one boundary: no step is taken at the new size with the old batch, and none between."""
    live = adaptive("linear")
    live.start(1, steps=3)
    change = ordered(live, MOST, newcomers=3)
    assert change[1:] == (MOST, 8.0)
    assert_exact(live, [(0, BATCH, 1.0), change])
    switched, changed = live.messages(Switched), live.messages(BatchChanged)
    assert {(one.generation, one.samples) for one in switched} == {(2, change[0])}
    assert len(changed) == 1
    batches = {(one.generation, one.global_batch) for one in live.messages(Progress)}
    assert batches <= {(1, BATCH), (2, MOST)}


def test_the_ranks_report_the_rule_that_fits_their_optimizer(adaptive: Callable[..., Live]) -> None:
    live = adaptive("auto")
    live.start(1)
    assert live.wait() == [0], live.output()
    assert {one.lr_rule for one in live.messages(Progress)} == {"adascale"}


def test_a_whole_move_keeps_the_batch(adaptive: Callable[..., Live]) -> None:
    """Nobody is left who knows it: it comes with the start."""
    live = adaptive("linear")
    live.start(1, steps=3)
    change = ordered(live, 24)
    live.wait_until_held()
    live.env = {**live.env, "HEADWAY_START_GLOBAL_BATCH": "24"}
    live.give(with_batch(live, 24, [], 1))
    live.allow(3)
    live.wait_for_switch()
    assert_exact(live, [(0, BATCH, 1.0), change])
    assert len(live.messages(BatchChanged)) == 1


def test_a_start_from_a_checkpoint_keeps_the_batch(adaptive: Callable[..., Live]) -> None:
    live = adaptive("linear")
    live.start(1, steps=3)
    change = ordered(live, 24)
    live.wait_until_held()
    stopped = live.job.generations[-1]
    stopped.stop()
    live.allow(3)
    stopped.wait()
    assert codes(stopped) == [143], stopped.output()
    again = live.job.run(2, generation=7, HEADWAY_START_GLOBAL_BATCH="24")
    assert codes(again) == [0, 0], again.output()
    (restored,) = again.messages(Restored)
    assert restored.samples == stopped.messages(Checkpointed)[-1].samples
    assert {one.global_batch for one in again.messages(Progress)} <= {24}
    assert_counts(live.job.folder, 2, [(0, BATCH, 1.0), change])


@pytest.mark.parametrize("own", [[], ["--own-loader"]])
def test_workers_of_all_ranks_draw_different_numbers(job: Callable[..., Job], own: list[str]) -> None:
    trained = job("augmented.py", *own).run(2)
    assert codes(trained) == [0, 0], trained.output()
    drawn = [line for line in trained.output().splitlines() if line.startswith("drawn ")]
    assert len(drawn) == 32 * 3
    assert len(set(drawn)) == len(drawn)


def test_ranks_that_step_together_in_their_own_rhythm_are_told_once(job: Callable[..., Job]) -> None:
    trained = job("skipping.py", "--every", 2).run(2)
    assert codes(trained) == [0, 0], trained.output()
    assert trained.output().count("ended without optimizer.step()") == 1


def test_new_rank_that_steps_in_another_rhythm_ends_alone_and_the_others_go_on(
    job: Callable[..., Job],
) -> None:
    live = Live(job("skipping.py", "--every", 2, "--apart"))
    live.start(1, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(["1.0"], 1))
    live.allow(4)
    assert live.until(lambda: live.processes["2.1"].code) == 1, live.output()
    assert "the ranks disagree on stepping" in live.output()
    live.give(live.survivors(["1.0"]))
    live.allow_all()
    assert live.wait() == [0], live.output()


def test_ranks_that_disagree_on_stepping_stop_with_the_reason(job: Callable[..., Job]) -> None:
    trained = job("skipping.py", "--every", 2, "--apart").run(2)
    assert 1 in codes(trained), trained.output()
    assert "the ranks disagree on stepping" in trained.output()
    assert "use max_local_batch" in trained.output()


def test_rank_that_breaks_alone_before_its_backward_pass_leaves_the_batch_out_on_every_rank(
    job: Callable[..., Job],
) -> None:
    trained = job("breaks.py", "before").run(2)
    assert codes(trained) == [0, 0], trained.output()
    assert "the 12 samples after sample 264 took no step" in trained.output()


def test_rank_that_breaks_alone_after_its_backward_pass_ends_all_with_its_number(
    job: Callable[..., Job],
) -> None:
    trained = job("breaks.py", "after").run(2)
    assert 1 in codes(trained), trained.output()
    assert "rank 1 did not; have every rank step in every step, without a break" in trained.output()
