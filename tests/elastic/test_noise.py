"""A lone rank measures the noise of its gradient, with an optimizer that divides gradients as well as without."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headway.contract.runtime import Progress
from service.domain.perf.batch import BatchSpeed, Noise, next_batch
from tests.elastic.harness import Generation, Job, codes

BATCH = 256
SAMPLES = 256 * BATCH


@pytest.fixture
def trained(job: Callable[..., Job]) -> Callable[..., Generation]:
    """Runs `noise.py` on one rank, for 1,024 steps unless told otherwise."""

    def run(optimizer: str, lr: float, *arguments: object, most: int = 1024, epochs: int = 4) -> Generation:
        shape = [
            "--samples",
            SAMPLES,
            "--epochs",
            epochs,
            "--batch",
            BATCH,
            "--optimizer",
            optimizer,
            "--lr",
            lr,
        ]
        env = {
            "HEADWAY_GLOBAL_BATCH": str(BATCH),
            "HEADWAY_MAX_GLOBAL_BATCH": str(most),
            "HEADWAY_LR_RULE": "auto",
        }
        measured = job("noise.py", *shape, *arguments, **env)
        measured.arguments = [*measured.arguments, "--result", str(measured.folder)]
        ended = measured.run(1)
        assert codes(ended) == [0], ended.output()
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


@pytest.mark.parametrize(("optimizer", "lr"), [("SGD", 0.02), ("Adam", 3e-4), ("AdamW", 3e-4)])
def test_the_noise_scale_of_a_regression_is_right(
    trained: Callable[..., Generation], optimizer: str, lr: float
) -> None:
    """The script clips its gradients, which is no part of the noise."""
    ended = trained(optimizer, lr)
    assert noise_of(ended).scale == pytest.approx(result_of(ended)["scale"], rel=0.25)


def chosen_batch(noise: Noise) -> int:
    """Return the batch that the service chooses after 100 steps with the present one."""
    speeds = {BATCH: BatchSpeed(1000.0, 100)}
    return next_batch(
        BATCH, reference=BATCH, most=1024, fresh_steps=100, speeds=speeds, noise=noise
    ).global_batch


@pytest.mark.parametrize(("scale", "batch"), [(40.0 * BATCH, 2 * BATCH), (0.02 * BATCH, BATCH)])
def test_the_batch_of_a_lone_adam_job_grows_where_noise_dominates(
    trained: Callable[..., Generation], scale: float, batch: int
) -> None:
    ended = trained("AdamW", 1e-6, "--linear", scale, epochs=2)
    noise = noise_of(ended)
    assert noise.scale > 5 * BATCH if batch > BATCH else noise.scale == pytest.approx(scale, rel=0.25)
    assert chosen_batch(noise) == batch


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
