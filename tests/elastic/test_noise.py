"""A lone rank measures the noise of its gradient, with an optimizer that divides gradients as well as without."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headway.contract.runtime import Progress
from service.domain.perf.batch import BatchSpeed, Noise, next_batch
from tests.elastic.harness import Generation, Job, codes
from tests.elastic.live import Live

FEATURES = 128  # of noise.py
BATCH = 256
MOST = 1024
SAMPLES = 256 * BATCH


def job_of(job: Callable[..., Job], optimizer: str, lr: float, *arguments: object, epochs: int = 4) -> Job:
    """Return a job of `noise.py` with an adaptive batch, for 1,024 steps unless told otherwise."""
    shape = {"samples": SAMPLES, "epochs": epochs, "batch": BATCH, "optimizer": optimizer, "lr": lr}
    env = {
        "HEADWAY_GLOBAL_BATCH": str(BATCH),
        "HEADWAY_MAX_GLOBAL_BATCH": str(MOST),
        "HEADWAY_LR_RULE": "auto",
    }
    options = [text for name, value in shape.items() for text in (f"--{name}", value)]
    made = job("noise.py", *options, *arguments, **env)
    made.arguments = [*made.arguments, "--result", str(made.folder)]
    return made


@pytest.fixture
def trained(job: Callable[..., Job]) -> Callable[..., Generation]:
    """Runs such a job, on one rank unless told otherwise."""

    def run(optimizer: str, lr: float, *arguments: object, epochs: int = 4, size: int = 1) -> Generation:
        ended = job_of(job, optimizer, lr, *arguments, epochs=epochs).run(size)
        assert codes(ended) == [0] * size, ended.output()
        return ended

    return run


def result_of(ended: Generation) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ended.control.parent / "noise-0.json").read_text())
    return found


def noise_of(ended: Generation) -> Noise:
    last = ended.messages(Progress)[-1]
    assert last.gradient_sqr is not None, ended.output()
    assert last.gradient_var is not None
    return Noise(last.gradient_sqr, last.gradient_var)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "lr"), [("SGD", 0.02), ("Adam", 3e-4), ("AdamW", 3e-4)])
def test_the_noise_scale_of_a_regression_is_right(
    trained: Callable[..., Generation], optimizer: str, lr: float
) -> None:
    """The script clips its gradients, which is no part of the noise."""
    ended = trained(optimizer, lr)
    assert noise_of(ended).scale == pytest.approx(result_of(ended)["scale"], rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "arguments"),
    [(1, []), (1, ["--max-local", BATCH // 2]), (2, [])],
    ids=["halves", "passes", "ranks"],
)
def test_a_scaled_loss_and_clipping_change_no_noise(
    trained: Callable[..., Generation], size: int, arguments: list[object]
) -> None:
    """The scale of the loss in half precision overflows at first, and doubles during the training."""
    scale = 0.02 * BATCH
    options = ["--linear", scale, "--scaler", *arguments]
    ended = trained("SGD", 1e-6, *options, epochs=2, size=size)
    assert noise_of(ended).sqr == pytest.approx(FEATURES, rel=0.1)
    assert scale / 3 < noise_of(ended).scale < 3 * scale, "the squared scale of the loss is beyond 2**30"


def chosen_batch(noise: Noise) -> int:
    """Return the batch that the service chooses after 100 steps with the present one."""
    speeds = {BATCH: BatchSpeed(1000.0, 100)}
    return next_batch(
        BATCH, reference=BATCH, most=MOST, fresh_steps=100, speeds=speeds, noise=noise
    ).global_batch


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "batch"), [(40.0 * BATCH, 2 * BATCH), (0.02 * BATCH, BATCH)])
def test_the_batch_of_a_lone_adam_job_grows_where_noise_dominates(
    trained: Callable[..., Generation], scale: float, batch: int
) -> None:
    ended = trained("AdamW", 1e-6, "--linear", scale, epochs=2)
    noise = noise_of(ended)
    assert noise.scale > 5 * BATCH if batch > BATCH else noise.scale == pytest.approx(scale, rel=0.25)
    assert chosen_batch(noise) == batch


@pytest.mark.slow
def test_measurements_cost_less_than_three_percent_of_the_steps(trained: Callable[..., Generation]) -> None:
    """A measurement is at most one more backward pass, so their number in 1,024 steps bounds their cost."""
    ended = trained("AdamW", 3e-4)
    assert 12 <= result_of(ended)["extra_passes"] <= 0.03 * 1024 + 2


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_loss_beside_the_output_is_noticed(trained: Callable[..., Generation], optimizer: str) -> None:
    """The gradient of a penalty on the weights would count as noise. SGD compares steps instead, AdamW measures nothing."""
    ended = trained(optimizer, 1e-6, "--penalty", epochs=1)
    last = ended.messages(Progress)[-1]
    assert (last.gradient_sqr is not None) == (optimizer == "SGD")
    assert ("a part of the loss does not depend on the model's output" in ended.output()) == (
        optimizer == "AdamW"
    )


def test_a_restarted_job_continues_with_the_same_estimate(job: Callable[..., Job]) -> None:
    """Its first report comes after the first step, before it could measure anything."""
    live = Live(job_of(job, "AdamW", 3e-4, epochs=4))
    live.start(1, steps=300)
    live.wait_until_held()
    stopped = live.job.generations[-1]
    stopped.stop()
    live.allow(3)
    stopped.wait()
    assert codes(stopped) == [143], stopped.output()
    before = noise_of(stopped)
    live.allow_all()
    again = live.job.start(1, generation=7, **live.env)
    again.until(lambda: bool(again.messages(Progress)))
    first = again.messages(Progress)[0]
    assert first.samples == stopped.messages(Progress)[-1].samples + BATCH
    assert (first.gradient_sqr, first.gradient_var) == (before.sqr, before.var)


@pytest.mark.slow
def test_a_whole_move_keeps_the_estimate(job: Callable[..., Job]) -> None:
    live = Live(job_of(job, "AdamW", 3e-4, epochs=4))
    live.start(1, steps=300)
    live.wait_until_held()
    live.give(live.newcomers([], 2))
    live.allow(3)
    live.wait_for_switch()
    live.allow_all()
    moved = live.processes[live.members[0]]
    reports = live.until(lambda: moved.messages(Progress))
    last = [one for one in live.messages(Progress) if one.generation == 1][-1]
    assert reports[0].gradient_var == pytest.approx(last.gradient_var, rel=0.2), (
        "at most one measurement newer"
    )
