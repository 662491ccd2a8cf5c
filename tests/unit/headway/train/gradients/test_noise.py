from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headway.train.gradients.noise import (
    LEAST_SHARE,
    Measurement,
    NoiseScale,
    SquaredNorm,
    SuccessiveSteps,
    preconditioner,
)


def squared_norm(gradients: Sequence[torch.Tensor]) -> float:
    norm = SquaredNorm()
    norm.add(gradients)
    return norm.take()


# Pieces


def test_the_squared_norm_of_a_large_gradient_in_32_bits_is_exact_to_1e_5() -> None:
    gradient = torch.randn(3_000_000, generator=torch.Generator().manual_seed(0))
    exact = gradient.double().square().sum().item()
    assert squared_norm([gradient.reshape(3, -1), gradient]) == pytest.approx(2 * exact, rel=1e-5)


def test_short_floats_are_summed_in_32_bits() -> None:
    gradient = torch.ones(5000, dtype=torch.bfloat16)
    assert squared_norm([gradient]) == pytest.approx(5000, rel=1e-5)


def test_nothing_is_zero_and_taking_begins_anew() -> None:
    norm = SquaredNorm()
    assert norm.take() == 0.0
    norm.add([])
    norm.add([torch.tensor([3.0, 4.0])])
    assert norm.take() == pytest.approx(25.0)
    assert norm.take() == 0.0


# Adam


def adam(
    steps: int, make: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
) -> Iterator[torch.optim.Optimizer]:
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5))]
    torch.manual_seed(3)
    optimizer = make(parameters, lr=0.01)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter) * 10
        optimizer.step()
    yield optimizer


def test_sgd_has_no_preconditioner() -> None:
    assert preconditioner(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)) is None


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
def test_gradients_are_divided_as_adam_divides_them(make: type[torch.optim.Optimizer]) -> None:
    (optimizer,) = adam(steps=12, make=make)
    scale = preconditioner(optimizer)
    assert scale is not None
    assert scale.ready
    parameters = optimizer.param_groups[0]["params"]
    expected = 0.0
    for parameter in parameters:
        second_moment = optimizer.state[parameter]["exp_avg_sq"] / (1 - 0.999**12)
        expected += (parameter.grad / (second_moment.sqrt() + 1e-8)).square().sum().item()
    norm = SquaredNorm(scale)
    before = [parameter.grad.clone() for parameter in parameters]
    norm.add([parameter.grad for parameter in parameters], parameters)
    assert norm.take() == pytest.approx(expected, rel=1e-5)
    for parameter, gradient in zip(parameters, before, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=0)


def test_an_element_whose_gradient_was_zero_so_far_does_not_dominate() -> None:
    weight = nn.Parameter(torch.zeros(1000))
    never = nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.AdamW([weight, never], lr=0.1)
    usual = torch.ones(1000)
    usual[0] = 0.0
    for _ in range(20):
        weight.grad, never.grad = usual.clone(), torch.zeros(5)
        optimizer.step()
    norm = SquaredNorm(preconditioner(optimizer))
    norm.add([torch.ones(1000), torch.ones(5)], [weight, never])
    # The second moment of the first element counts as a hundredth of the mean of all.
    assert norm.take() == pytest.approx(999 + 1 / (LEAST_SHARE * 0.999), rel=1e-5)


def test_adam_is_not_ready_before_it_has_seen_some_steps() -> None:
    for steps in (0, 1, 9):
        (optimizer,) = adam(steps)
        scale = preconditioner(optimizer)
        assert scale is not None
        assert not scale.ready


def test_a_parameter_that_was_never_stepped_counts_nothing() -> None:
    (optimizer,) = adam(steps=10)
    norm = SquaredNorm(preconditioner(optimizer))
    norm.add([torch.ones(7)], [nn.Parameter(torch.zeros(7))])
    assert norm.take() == 0.0


# Successive steps


def test_two_steps_make_a_pair() -> None:
    steps = SuccessiveSteps()
    waiting, found = [], []
    for _ in range(4):
        waiting.append(steps.waiting)
        found.append(steps.add([torch.ones(3)], 4))
    assert waiting == [False, True, False, True]
    assert [one is not None for one in found] == waiting
    assert found[1] == Measurement(pytest.approx(3.0), pytest.approx(0.0, abs=1e-6), biased=True)


def test_what_was_forgotten_is_not_compared() -> None:
    steps = SuccessiveSteps()
    steps.add([torch.ones(3)], 4)
    steps.forget()
    assert steps.add([torch.zeros(3)], 4) is None
    assert steps.add([torch.zeros(3)], 4) is not None


def test_gradients_of_other_parameters_are_not_compared() -> None:
    steps = SuccessiveSteps()
    steps.add([torch.ones(3)], 4)
    assert steps.add([torch.ones(3), torch.ones(2)], 4) is None


def test_a_gradient_that_is_kept_is_a_copy() -> None:
    gradient = torch.ones(3)
    steps = SuccessiveSteps()
    steps.add([gradient], 4)
    gradient.zero_()
    found = steps.add([gradient], 4)
    assert found is not None
    assert found.var == pytest.approx(4 * 1.5), "|a - b|^2 = 3 is twice the variance of a mean of 4"


# Smoothing


@given(
    sqr=st.floats(-10, 10),
    var=st.floats(-10, 10),
    samples=st.lists(st.integers(1, 10_000), min_size=1, max_size=30),
)
def test_the_average_of_a_constant_is_the_constant_whatever_the_batches(
    sqr: float, var: float, samples: list[int]
) -> None:
    noise = NoiseScale(64)
    for batch in samples:
        noise.add(Measurement(sqr, var), batch)
    estimate = noise.estimate
    assert estimate is not None
    assert estimate.sqr == pytest.approx(max(sqr, 0.0), abs=1e-9)
    assert estimate.var == pytest.approx(max(var, 0.0), abs=1e-9)
    assert estimate.steps == len(samples)


def test_a_large_batch_counts_as_the_many_small_ones_that_it_replaces() -> None:
    small, large = NoiseScale(10), NoiseScale(10)
    for noise in (small, large):
        noise.add(Measurement(1.0, 1.0), 5000)
    for _ in range(50):
        small.add(Measurement(3.0, 2.0), 10)
    large.add(Measurement(3.0, 2.0), 500)
    assert small.estimate is not None
    assert large.estimate is not None
    assert small.estimate.sqr == pytest.approx(large.estimate.sqr)
    assert small.estimate.var / small.estimate.sqr == pytest.approx(large.estimate.var / large.estimate.sqr)


def test_steps_that_are_not_finite_are_left_out() -> None:
    noise = NoiseScale(8)
    noise.add(Measurement(math.nan, 1.0), 8)
    assert noise.estimate is None
    noise.add(Measurement(2.0, 6.0), 8)
    for bad in (math.nan, math.inf, -math.inf):
        noise.add(Measurement(1.0, bad), 8)
    estimate = noise.estimate
    assert estimate is not None
    assert (estimate.sqr, estimate.var) == pytest.approx((2.0, 6.0))


def test_biased_measurements_go_with_the_first_unbiased_one() -> None:
    noise = NoiseScale(8)
    noise.add(Measurement(9.0, 9.0, biased=True), 8)
    assert noise.estimate is not None
    assert noise.estimate.biased
    noise.add(Measurement(1.0, 2.0), 8)
    assert (noise.estimate.sqr, noise.estimate.biased, noise.estimate.steps) == (pytest.approx(1.0), False, 1)
    noise.add(Measurement(1.0, 2.0, biased=True), 8)
    assert noise.estimate.biased


def test_an_estimate_of_the_signal_is_never_negative() -> None:
    noise = NoiseScale(8)
    noise.add(Measurement(-1.0, 5.0), 8)
    assert noise.estimate is not None
    assert noise.estimate.sqr == 0.0


def test_a_newcomer_goes_on_with_the_state_of_a_peer() -> None:
    old, new = NoiseScale(8), NoiseScale(8)
    old.add(Measurement(1.0, 2.0, biased=True), 8)
    new.load_state_dict(old.state_dict())
    for noise in (old, new):
        noise.add(Measurement(3.0, 1.0, biased=True), 16)
    assert new.estimate == old.estimate


# Precision


@pytest.mark.parametrize(("samples", "expected"), [(64, 2000.0), (128, 1000.0), (32, 4000.0)])
def test_larger_batches_leave_fewer_steps_in_memory(samples: int, expected: float) -> None:
    assert NoiseScale(64).remembered_steps(samples) == expected


def scattered(values: list[tuple[float, float]], reference: int = 10) -> NoiseScale:
    noise = NoiseScale(reference)
    for sqr, var in values:
        noise.add(Measurement(sqr, var), 1)
    return noise


def test_one_measurement_says_nothing_of_its_error() -> None:
    assert NoiseScale(10).efficiency_error(10) == math.inf
    assert scattered([(1.0, 30.0)]).efficiency_error(10) == math.inf
    assert scattered([(1.0, 30.0)] * 2).efficiency_error(10) == pytest.approx(0.0, abs=1e-7)
    assert scattered([(0.0, 0.0)] * 5).efficiency_error(10) == math.inf


def test_the_error_is_the_scatter_of_the_efficiency() -> None:
    """Compared with the efficiencies of many estimates, each from 400 measurements."""
    rng = random.Random(3)
    batch, found, errors = 20, [], []
    for _ in range(200):
        # Long memory: all 400 count alike.
        noise = scattered([(rng.gauss(1.0, 0.6), rng.gauss(30.0, 9.0)) for _ in range(400)], reference=10_000)
        estimate = noise.estimate
        assert estimate is not None
        phi = estimate.var / estimate.sqr
        found.append((phi + batch) / (phi + 2 * batch))
        errors.append(noise.efficiency_error(batch))
    scatter = statistics.stdev(found) / statistics.mean(found) * math.sqrt(400)
    assert statistics.mean(errors) == pytest.approx(scatter, rel=0.15)
    assert statistics.stdev(errors) < 0.1 * scatter


def test_values_too_large_for_the_arithmetic_have_no_error() -> None:
    noise = scattered([(1e150, 1e150), (1e150, 2e150)])
    assert not math.isnan(noise.efficiency_error(10**9))
    assert scattered([(1e200, 1.0)]).estimate is None
