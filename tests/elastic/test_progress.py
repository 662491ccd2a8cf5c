"""Training with an adaptive batch ends at the progress of its epochs, which every rank counts alike through resizes, losses
and restarts. The noise scale of the script is known, so every number here follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.contract.orders import BatchPlan
from headway.contract.runtime import Completed, EpochClosed, Progress, Restored, Switched
from headway.train.data.position import order
from tests.elastic.harness import Job, codes
from tests.elastic.live import Live

SAMPLES, EPOCHS, BATCH, MOST = 96, 3, 8, 64
PHI = 40.0
LARGE = 24
EFFICIENCY = (PHI + BATCH) / (PHI + LARGE)  # 0.75
FACTOR = LARGE / BATCH * EFFICIENCY


@dataclass
class Expected:
    """The training that follows from changes of the batch: (samples from which on, batch, efficiency)."""

    changes: list[tuple[int, int, float]]
    total_samples: float = math.inf
    counts: torch.Tensor = field(default_factory=lambda: torch.zeros(SAMPLES, dtype=torch.float64))
    samples: int = 0
    progress: float = 0.0
    steps: float = 0.0
    factors: float = 0.0

    def run(self) -> Expected:
        while self.progress < SAMPLES * EPOCHS - 1e-6 and self.samples < self.total_samples:
            _, batch, efficiency = [one for one in self.changes if one[0] <= self.samples][-1]
            epoch, start = divmod(self.samples, SAMPLES)
            step = torch.from_numpy(order(SAMPLES, seed=7, epoch=epoch))[start : start + batch]
            factor = batch / BATCH * efficiency
            self.counts[step] -= factor / len(step)
            self.factors += factor
            self.steps += efficiency * (math.ceil((start + len(step)) / BATCH) - math.ceil(start / BATCH))
            self.samples += len(step)
            self.progress += efficiency * len(step)
        return self


@pytest.fixture
def adaptive(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job of a known noise scale whose batch may change."""

    def make(rule: str = "adascale", *arguments: object, most: int | None = MOST) -> Live:
        env = {"HEADWAY_GLOBAL_BATCH": str(BATCH), "HEADWAY_LR_RULE": rule}
        if most is not None:
            env["HEADWAY_MAX_GLOBAL_BATCH"] = str(most)
        shape = ["--samples", SAMPLES, "--epochs", EPOCHS, "--batch", BATCH, "--signal", 1 / PHI]
        counted = job("progress.py", *shape, *arguments, **env)
        counted.arguments = [*counted.arguments, "--result", str(counted.folder)]
        return Live(counted)

    return make


def change_batch(live: Live, batch: int, *, newcomers: int = 0, effect: float = 1.0) -> int:
    """Have the batch changed, perhaps with the members; the samples from which on."""
    live.wait_until_held()
    plan = BatchPlan(global_batch=batch, effect=effect)
    live.give(replace(live.newcomers(live.members, newcomers), batch=plan))
    live.allow(3)
    (samples,) = {one.samples for one in live.wait_for_switch()}
    return samples


def results(folder: Path, size: int) -> list[dict[str, Any]]:
    return [
        torch.load(folder / f"{rank}-of-{size}.pt", map_location="cpu", weights_only=True)
        for rank in range(size)
    ]


def assert_as_expected(folder: Path, size: int, expected: Expected) -> None:
    for result in results(folder, size):
        torch.testing.assert_close(result["counts"], expected.counts, rtol=1e-9, atol=1e-9)
        assert result["steps"] == pytest.approx(expected.factors)
        assert result["progress"] == pytest.approx(expected.progress / SAMPLES)
        most = EPOCHS * SAMPLES // BATCH
        assert result["by_step"] == math.floor(min(expected.steps, most) + 1e-6)
    assert len({result["progress"] for result in results(folder, size)}) == 1, "to the last bit"


def assert_ends(live: Live, expected: Expected) -> None:
    live.allow_all()
    assert live.wait() == [0] * len(live.members), live.output()
    assert_as_expected(live.job.folder, len(live.members), expected)
    epoch, part = divmod(expected.samples, SAMPLES)
    ends = {(one.samples, one.epoch, one.epoch_samples) for one in live.messages(Completed)}
    assert ends == {(expected.samples, *((epoch, part) if part else (None, None)))}
    last = live.messages(Progress)[-1]
    assert (last.samples, last.progress) == (expected.samples, pytest.approx(expected.progress))
    assert (last.total_samples, last.total_progress, last.dataset_samples) == (288, 288.0, SAMPLES)
    audits = live.messages(EpochClosed)
    assert {audit.epoch for audit in audits} == set(range(expected.samples // SAMPLES))
    assert all(audit.exactly_once and audit.samples_seen == SAMPLES for audit in audits)


def test_more_is_read_across_a_resize_and_a_loss(adaptive: Callable[..., Live]) -> None:
    """A member joins with the larger batch, another dies within a step, and no step counts twice."""
    live = adaptive()
    live.start(2, steps=3)
    start = change_batch(live, LARGE, newcomers=1)
    live.wait_until_held()
    lost = live.members[1]
    live.kill(lost)
    live.give(live.survivors([one for one in live.members if one != lost]))
    live.allow(2)
    assert {one.lost_steps for one in live.wait_for_switch()} == {1}
    expected = Expected([(0, BATCH, 1.0), (start, LARGE, EFFICIENCY)]).run()
    assert expected.samples > 1.2 * SAMPLES * EPOCHS
    assert_ends(live, expected)
    for result in results(live.job.folder, 2):
        assert result["by_epoch"] == 3, "the epochs by progress, of more that were read"


def test_rank_0_dies(adaptive: Callable[..., Live]) -> None:
    """The statement of rank 0 counts; the next rank 0 continues from the same number."""
    live = adaptive()
    live.start(3, steps=3)
    start = change_batch(live, LARGE)
    live.wait_until_held()
    live.kill(live.members[0])
    live.give(live.survivors(live.members[1:]))
    live.allow(2)
    live.wait_for_switch()
    assert_ends(live, Expected([(0, BATCH, 1.0), (start, LARGE, EFFICIENCY)]).run())


def test_back_to_the_batch_of_the_job(adaptive: Callable[..., Live]) -> None:
    live = adaptive()
    live.start(2, steps=3)
    first = change_batch(live, LARGE)
    second = change_batch(live, BATCH)
    changes = [(0, BATCH, 1.0), (first, LARGE, EFFICIENCY), (second, BATCH, 1.0)]
    assert_ends(live, Expected(changes).run())


def test_ranks_count_by_the_effect_that_comes_with_the_order(adaptive: Callable[..., Live]) -> None:
    """The member that joins was started without it. After a loss, the next order brings another one."""
    live = adaptive()
    live.start(2, steps=3)
    first = change_batch(live, LARGE, newcomers=1, effect=0.5)
    live.wait_until_held()
    live.kill(live.members[1])
    plan = BatchPlan(global_batch=LARGE, effect=2.0)
    live.give(replace(live.survivors([live.members[0], live.members[2]]), batch=plan))
    live.allow(3)
    ((second, lost_steps),) = {(one.samples, one.lost_steps) for one in live.wait_for_switch()}
    assert lost_steps == 1
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    changes = [(0, BATCH, 1.0), (first, LARGE, EFFICIENCY**0.5), (second, LARGE, EFFICIENCY**2)]
    expected = Expected(changes).run()
    last = live.messages(Progress)[-1]
    assert (last.samples, last.progress) == (expected.samples, pytest.approx(expected.progress))


def test_a_restart_from_a_checkpoint_continues_the_count(adaptive: Callable[..., Live]) -> None:
    live = adaptive()
    live.start(2, steps=3)
    start = change_batch(live, LARGE)
    live.wait_until_held()
    stopped = live.job.generations[-1]
    stopped.stop()
    live.allow(3)
    stopped.wait()
    assert codes(stopped) == [143, 143], stopped.output()
    again = live.job.run(3, generation=7, HEADWAY_START_GLOBAL_BATCH=str(LARGE))
    assert codes(again) == [0, 0, 0], again.output()
    (restored,) = again.messages(Restored)
    changes = [(0, BATCH, 1.0), (start, LARGE, EFFICIENCY)]
    saved = Expected(changes, total_samples=restored.samples).run()
    assert restored.progress == pytest.approx(saved.progress)
    expected = Expected(changes).run()
    assert_as_expected(live.job.folder, 3, expected)
    completed = again.messages(Completed)[0]
    assert completed.samples == expected.samples
    third = live.job.run(1, generation=8, HEADWAY_START_GLOBAL_BATCH=str(LARGE))
    assert codes(third) == [0], third.output()
    assert {one.samples for one in third.messages(Completed)} == {completed.samples}, "it was at its end"


def test_an_unscaled_rate_makes_the_progress_of_one_step(adaptive: Callable[..., Live]) -> None:
    live = adaptive("none")
    live.start(2, steps=3)
    start = change_batch(live, LARGE)
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    last = live.messages(Progress)[-1]
    expected = Expected([(0, BATCH, 1.0), (start, LARGE, BATCH / LARGE)]).run()
    assert (last.samples, last.progress) == (expected.samples, pytest.approx(expected.progress))


def test_until_epochs_ends_as_the_data_do(adaptive: Callable[..., Live]) -> None:
    live = adaptive("adascale", "--until", "epochs")
    live.start(2, steps=3)
    start = change_batch(live, LARGE)
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    changes = [(0, BATCH, 1.0), (start, LARGE, EFFICIENCY)]
    expected = Expected(changes, total_samples=SAMPLES * EPOCHS).run()
    assert_as_expected(live.job.folder, 2, expected)
    last = live.messages(Progress)[-1]
    assert (last.samples, last.total_samples, last.total_progress) == (288, 288, None)
    assert last.progress == pytest.approx(expected.progress)


@pytest.mark.parametrize("until", [[], ["--until", "progress"]], ids=["default", "progress"])
def test_a_constant_batch_ends_as_it_always_did(adaptive: Callable[..., Live], until: list[str]) -> None:
    live = adaptive("adascale", *until, most=None)
    live.start(1, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(live.members, 1))
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    assert [one.samples for one in live.messages(Completed)] == [288, 288]
    assert {one.progress for one in live.messages(Progress)} == {None}
    assert {one.epoch for one in live.messages(EpochClosed)} == {0, 1, 2}
    assert all(one.lost_steps == 0 for one in live.messages(Switched))
    for result in results(live.job.folder, 2):
        assert (result["by_step"], result["by_epoch"], result["progress"]) == (36, 3, 3.0)
        assert result["steps"] == pytest.approx(36.0)
