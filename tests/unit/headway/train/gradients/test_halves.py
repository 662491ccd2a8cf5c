"""Tests of the noise from the halves of a batch: by hand, without a trace in the script's own gradient, and refusals."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import count

import pytest
import torch
from torch import Tensor, nn

from headway.train.gradients.halves import HalfBatches
from headway.train.gradients.noise import Measurement

FEATURES = 3


class Script:
    """A training loop over one model, whose steps are measured."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor] | None = None) -> None:
        ticks = count()
        self.halves = HalfBatches(lambda: float(next(ticks)))
        torch.manual_seed(0)
        self.model = nn.Linear(FEATURES, 1, bias=False)
        self.parameters = list(self.model.parameters())
        for one in self.parameters:
            one.register_post_accumulate_grad_hook(self.halves.accumulated)
        self.forward = forward or (lambda model, x: model(x))

    def step(
        self, x: Tensor, loss_of: Callable[[Tensor], Tensor] = torch.mean, *, measures: bool = True
    ) -> Measurement | None:
        self.model.zero_grad()
        self.halves.begin(measures=measures)
        output = self.forward(self.model, x)
        self.halves.watch(output, self.parameters, len(x))
        loss_of(output).backward()
        return self.halves.finish()


def by_hand(x: Tensor) -> Measurement:
    """The gradient of the mean output of a linear model is the mean of its inputs."""
    rows, samples = len(x) // 2, len(x)
    first, second, whole = (part.mean(0).square().sum().item() for part in (x[:rows], x[rows:], x))
    moment = rows / samples * first + (1 - rows / samples) * second
    var = (moment - whole) / (2 / samples - 1 / samples)
    return Measurement(pytest.approx(whole - var / samples, rel=1e-5), pytest.approx(var, rel=1e-5))


@pytest.mark.parametrize("samples", [2, 8, 9])
def test_the_second_step_is_measured_by_its_halves(samples: int) -> None:
    script = Script()
    assert script.step(torch.randn(samples, FEATURES)) is None, "the first one verifies the method"
    x = torch.randn(samples, FEATURES)
    assert script.step(x) == by_hand(x)
    torch.testing.assert_close(script.model.weight.grad, x.mean(0, keepdim=True))
    assert script.halves.spent_s > 0.0
    assert script.step(x, measures=False) is None
    assert script.halves.spent_s == 0.0
    assert script.halves.refusal is None


def test_a_script_may_change_the_output_in_place_and_clip_the_gradient() -> None:
    script = Script(lambda model, x: model(x) * 1.0)
    x = torch.randn(8, FEATURES)
    for _ in range(2):
        measured = script.step(x, lambda output: output.mul_(3.0).mean())
        nn.utils.clip_grad_norm_(script.parameters, 1e-3)
    assert measured == by_hand(3 * x)


def test_statistics_of_batch_normalisation_are_those_of_a_single_pass() -> None:
    norm = nn.BatchNorm1d(1)
    script = Script(lambda model, x: norm(model(x)))
    for step in range(1, 4):
        script.step(torch.randn(8, FEATURES), lambda output: output.square().mean())
        assert norm.num_batches_tracked == step


@pytest.mark.parametrize(
    ("forward", "loss_of"),
    [
        (lambda model, x: model(x).mean(), torch.mean),
        (lambda model, x: model(x).reshape(2, -1), torch.mean),
        (lambda model, x: (model(x), model(x)), lambda both: both[0].mean() + both[1].mean()),
    ],
    ids=["a scalar", "other rows", "two tensors"],
)
def test_an_output_without_rows_is_refused(
    forward: Callable[[nn.Module, Tensor], Tensor], loss_of: Callable[[Tensor], Tensor]
) -> None:
    script = Script(forward)
    for _ in range(3):
        assert script.step(torch.randn(8, FEATURES), loss_of) is None
    assert script.halves.refusal is not None
    assert script.model.weight.grad is not None


def test_a_loss_beside_the_output_is_refused() -> None:
    script = Script()
    for _ in range(2):
        found = script.step(
            torch.randn(8, FEATURES), lambda out: out.mean() + script.model.weight.square().sum()
        )
        assert found is None
    assert script.halves.refusal is not None


def test_two_passes_a_step_are_refused() -> None:
    script = Script()
    script.halves.begin(measures=True)
    for _ in range(2):
        x = torch.randn(4, FEATURES)
        output = script.model(x)
        script.halves.watch(output, script.parameters, 4)
        output.mean().backward()
    assert script.halves.finish() is None
    assert script.halves.refusal is not None


def test_a_single_sample_and_a_gradient_that_is_not_finite_say_nothing() -> None:
    script = Script()
    assert script.step(torch.randn(1, FEATURES)) is None
    assert script.step(torch.full((4, FEATURES), float("nan"))) is None
    assert script.halves.refusal is None
    assert script.step(torch.ones(4, FEATURES)) is None, "not verified before"
    assert script.step(torch.ones(4, FEATURES)) is not None


class NoSecondPass(torch.autograd.Function):
    """As a compiled graph: its memory is used again in the first backward pass."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        if not getattr(ctx, "failed", False):
            ctx.failed = True  # type: ignore[attr-defined]
            raise RuntimeError("no second pass")
        return gradient


def test_a_graph_that_allows_no_second_pass_trains_on() -> None:
    script = Script(lambda model, x: NoSecondPass.apply(model(x)))  # type: ignore[no-untyped-call]
    x = torch.randn(4, FEATURES)
    assert script.step(x) is None
    torch.testing.assert_close(script.model.weight.grad, x.mean(0, keepdim=True))
    assert script.halves.refusal is not None


class Payload:
    """Something that lives as long as the graph that holds it."""


class Holding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, payload: Payload) -> Tensor:
        ctx.payload = payload  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@pytest.mark.parametrize("trains", [True, False])
def test_a_measurement_keeps_no_graph_in_memory(trains: bool) -> None:
    """Neither of a step that ended, nor of an output that the script did not use."""
    script, payload = Script(), Payload()
    alive = weakref.ref(payload)
    script.halves.begin(measures=True)
    output = Holding.apply(script.model(torch.ones(4, FEATURES)), payload)  # type: ignore[no-untyped-call]
    script.halves.watch(output, script.parameters, 4)
    if trains:
        output.mean().backward()
    del output, payload
    script.halves.begin(measures=False)
    gc.collect()
    assert alive() is None
