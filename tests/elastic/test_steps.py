"""Training by steps, without epochs, while members come, go and are lost: each sample counts as in an undisturbed run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from headway.contract.orders import BatchPlan
from headway.contract.runtime import Completed, EpochClosed, Progress, Restored
from headway.train.data.position import order
from headway.train.draws import draw
from tests.elastic.harness import Job, codes
from tests.elastic.live import Live
from tests.elastic.test_live import lose

SAMPLES, STEPS, BATCH = 50, 30, 8
STOPPED = 143
PHI, LARGE, MOST = 40.0, 24, 64
EFFICIENCY = (PHI + BATCH) / (PHI + LARGE)  # 0.75


def samples_of(data: str, steps: int = STEPS) -> list[np.ndarray]:
    """The samples of each step, computed without ranks, stops or steps."""
    if data == "draws":
        return [
            draw(SAMPLES, range(start, start + BATCH), seed=7) for start in range(0, steps * BATCH, BATCH)
        ]
    of_epochs = (order(SAMPLES, seed=7, epoch=epoch) for epoch in range(steps))
    in_order = [one[start : start + BATCH] for one in of_epochs for start in range(0, SAMPLES, BATCH)]
    return in_order[:steps]


def counts_of(steps: list[np.ndarray]) -> torch.Tensor:
    counts = torch.zeros(SAMPLES, dtype=torch.float64)
    for step in steps:
        counts -= torch.from_numpy(np.bincount(step, minlength=SAMPLES) / len(step))
    return counts


def assert_exact(live: Live, data: str) -> None:
    live.allow_all()
    assert live.wait() == [0] * len(live.members), live.output()
    assert_counts(live.job, data, len(live.members))
    assert {one.samples for one in live.messages(Completed)} == {sum(map(len, samples_of(data)))}


def assert_counts(job: Job, data: str, size: int) -> None:
    """Every rank ends with the counts of an undisturbed run, after as many steps."""
    for rank in range(size):
        result = torch.load(job.folder / f"{rank}-of-{size}.pt", map_location="cpu", weights_only=True)
        torch.testing.assert_close(result["counts"], counts_of(samples_of(data)), rtol=1e-9, atol=1e-9)
        assert (result["steps"], result["scheduled"]) == (STEPS, STEPS)


def evaluated(job: Job) -> set[int]:
    return {int(line) for file in job.folder.glob("evaluated-*.txt") for line in file.read_text().split()}


@pytest.fixture
def stepping(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job that trains by steps."""

    def make(data: str, *arguments: object, **env: str) -> Live:
        shape = ["--data", data, "--samples", SAMPLES, "--steps", STEPS, "--batch", BATCH]
        steps = job("steps.py", *shape, *arguments, **env)
        steps.arguments = [*steps.arguments, "--result", str(steps.folder)]
        return Live(steps)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        *((data, batches) for data in ("loader", "draws") for batches in ([], ["--max-local", 3])),
        *((data, ["--max-local", 3, "--one-by-one"]) for data in ("loader", "range", "draws")),
    ],
    ids=lambda value: value if isinstance(value, str) else "".join(map(str, value)),
)
def test_grow_shrink_lose_and_grow_again(
    stepping: Callable[..., Live], data: str, arguments: list[object]
) -> None:
    live = stepping(data, *arguments)
    live.start(1, steps=2)
    turns = (
        lambda: live.newcomers(live.members, 2),
        lambda: live.newcomers(live.members[1:], 0),
        lambda: lose(live, live.members[0]),
        lambda: live.newcomers(live.members, 1),
    )
    live.play(turns, steps=4)
    assert_exact(live, data)
    assert evaluated(live.job) == {0, 10, 20}
    last = live.messages(Progress)[-1]
    assert (last.train_step, last.train_steps, last.total_samples) == (STEPS, STEPS, last.samples)
    audits = {one.epoch: (one.exactly_once, one.samples_seen) for one in live.messages(EpochClosed)}
    draws = {0: (True, STEPS * BATCH)}
    assert audits == (draws if data == "draws" else dict.fromkeys(range(4), (True, SAMPLES)))
    assert last.draws is (data == "draws")


@pytest.mark.parametrize("data", ["loader", "draws"])
def test_a_restart_continues_at_the_step(stepping: Callable[..., Live], data: str) -> None:
    job = stepping(data).job
    stopped = job.run(2, FAULTS=json.dumps([[1, 12, "SIGTERM"]]))
    assert codes(stopped) == [STOPPED] * 2, stopped.output()
    finished = job.run(3)
    assert codes(finished) == [0] * 3, finished.output()
    assert [one.samples for one in finished.messages(Restored)] == [sum(map(len, samples_of(data, 13)))]
    assert_counts(job, data, 3)
    again = job.run(1)
    assert codes(again) == [0], again.output()
    assert not again.messages(Progress)[-1].steps, "it was at its end"


def test_a_larger_batch_takes_fewer_steps_to_the_same_progress(stepping: Callable[..., Live]) -> None:
    env = {
        "HEADWAY_GLOBAL_BATCH": str(BATCH),
        "HEADWAY_MAX_GLOBAL_BATCH": str(MOST),
        "HEADWAY_LR_RULE": "adascale",
    }
    live = stepping("draws", "--signal", 1 / PHI, "--samples", 10**6, **env)
    live.start(2, steps=3)
    live.wait_until_held()
    live.give(replace(live.newcomers(live.members, 1), batch=BatchPlan(global_batch=LARGE)))
    live.allow(3)
    (samples,) = {one.samples for one in live.wait_for_switch()}
    live.allow_all()
    assert live.wait() == [0] * 3, live.output()
    small = samples // BATCH
    each = LARGE / BATCH * EFFICIENCY  # steps of the job's own batch that a step of the large one is worth
    large = int(np.ceil((STEPS - small) / each))
    for rank in range(3):
        result = torch.load(live.job.folder / f"{rank}-of-3.pt", map_location="cpu", weights_only=True)
        assert result["steps"] == small + large < STEPS
        assert result["progress"] == pytest.approx(small + large * each)
        assert result["scheduled"] == STEPS
    last = live.messages(Progress)[-1]
    assert last.train_step == int(small + large * each) >= STEPS
    assert (last.train_steps, last.total_progress) == (STEPS, STEPS * BATCH)
    assert len(evaluated(live.job)) == 3, "step 0 and two of steps that have gaps in their numbers"
