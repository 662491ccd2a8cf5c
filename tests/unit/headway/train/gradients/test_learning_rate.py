from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headway.contract.values.learning_rate_rules import Rule, RuleSetting
from headway.train.gradients.learning_rate import factor, rule_for, scaled
from headway.train.gradients.noise import NoiseEstimate

positive = st.floats(1e-6, 1e6)


def estimate(sqr: float, var: float) -> NoiseEstimate:
    return NoiseEstimate(sqr=sqr, var=var, biased=False, steps=100)


def optimizer_of(make: type[torch.optim.Optimizer], **options: Any) -> torch.optim.Optimizer:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    return make([{"params": [parameter]}], **options)


def step(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Where one step of the gradient (1, 3) leads."""
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = torch.tensor([1.0, 3.0])
    optimizer.step()
    return parameter.detach().clone()


# The rules


@pytest.mark.parametrize(
    ("rule", "expected"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0), ("adascale", (2 + 3) / (0.5 + 3))]
)
def test_the_rules_at_four_times_the_batch(rule: Rule, expected: float) -> None:
    # var is of one sample: 2 at the reference batch of 8.
    assert factor(rule, 32, 8, estimate(sqr=3.0, var=16.0)) == pytest.approx(expected)


@pytest.mark.parametrize("rule", ["none", "linear", "sqrt", "adascale"])
def test_at_the_reference_batch_nothing_changes(rule: Rule) -> None:
    assert factor(rule, 64, 64, estimate(1.0, 5.0)) == pytest.approx(1.0)
    assert factor(rule, 64, 64) == pytest.approx(1.0)


@given(sqr=positive, var=positive, reference=st.integers(1, 1000), times=st.integers(1, 100))
def test_adascale_lies_between_no_noise_and_nothing_but_noise(
    sqr: float, var: float, reference: int, times: int
) -> None:
    gain = factor("adascale", reference * times, reference, estimate(sqr, var))
    assert 1 - 1e-9 <= gain <= times * (1 + 1e-9)


@given(sqr=positive, var=positive, reference=st.integers(1, 1000), batch=st.integers(1, 100_000))
def test_adascale_is_the_efficiency_of_a_sample_times_the_samples(
    sqr: float, var: float, reference: int, batch: int
) -> None:
    noise = estimate(sqr, var)
    gain = factor("adascale", batch, reference, noise)
    noise_scale = noise.var / noise.sqr
    efficiency = (noise_scale + reference) / (noise_scale + batch)
    assert gain == pytest.approx(efficiency * batch / reference)


def test_adascale_knows_the_extremes_of_noise() -> None:
    assert factor("adascale", 32, 8, estimate(sqr=0.0, var=1.0)) == pytest.approx(4.0)
    assert factor("adascale", 32, 8, estimate(sqr=1.0, var=0.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("noise", [None, estimate(0.0, 0.0)])
def test_adascale_is_careful_while_nothing_is_known(noise: NoiseEstimate | None) -> None:
    assert factor("adascale", 32, 8, noise) == 1.0
    assert factor("adascale", 2, 8, noise) == 0.25


def test_what_is_no_batch_and_what_is_no_rule_say_so() -> None:
    with pytest.raises(ValueError, match="at least 1 sample"):
        factor("linear", 0, 8)
    with pytest.raises(ValueError, match="adascale, sqrt, linear, none"):
        factor("cosine", 8, 8)  # type: ignore[arg-type]


# Around a step


@pytest.mark.parametrize(("make", "options"), [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {})])
def test_a_scaled_step_is_a_step_at_that_learning_rate(
    make: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    own, other = optimizer_of(make, lr=0.1, **options), optimizer_of(make, lr=0.25, **options)
    for _ in range(3):
        with scaled(own, 2.5):
            found = step(own)
        torch.testing.assert_close(found, step(other))
    (parameter,) = own.param_groups[0]["params"]
    (same,) = other.param_groups[0]["params"]
    for name, value in own.state[parameter].items():
        torch.testing.assert_close(value, other.state[same][name], msg=f"{name} is kept as it is")


def test_a_checkpoint_holds_the_scripts_own_learning_rate() -> None:
    optimizer = optimizer_of(torch.optim.SGD, lr=0.1)
    with scaled(optimizer, 3.0):
        step(optimizer)
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.1


def test_every_group_is_scaled_by_the_same_factor() -> None:
    parameters = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(
        [{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:], "lr": 1.0}]
    )
    with scaled(optimizer, 0.5):
        assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.5]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 1.0]


def test_a_scheduler_goes_its_own_way() -> None:
    optimizer = optimizer_of(torch.optim.SGD, lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    seen, applied = [], []
    for by in (1.0, 4.0, 2.0, 1.0):
        with scaled(optimizer, by):
            applied.append(optimizer.param_groups[0]["lr"])
            step(optimizer)
        seen.append(scheduler.get_last_lr()[0])
        scheduler.step()
    assert seen == pytest.approx([0.1, 0.05, 0.025, 0.0125])
    assert applied == pytest.approx([0.1, 0.2, 0.05, 0.0125])


def test_a_scheduler_that_multiplies_the_rate_it_finds_is_not_fooled() -> None:
    optimizer = optimizer_of(torch.optim.SGD, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for _ in range(3):
        with scaled(optimizer, 8.0):
            step(optimizer)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)


def test_a_learning_rate_in_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.1)
    optimizer = optimizer_of(torch.optim.Adam, lr=rate, capturable=False, foreach=False)
    with scaled(optimizer, 2.0):
        assert optimizer.param_groups[0]["lr"] is not rate
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.1)


def test_a_step_that_fails_leaves_the_learning_rate_as_it_was() -> None:
    optimizer = optimizer_of(torch.optim.SGD, lr=0.1)
    with pytest.raises(ZeroDivisionError), scaled(optimizer, 2.0):
        raise ZeroDivisionError
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_an_optimizer_without_a_learning_rate_says_so() -> None:
    class Strange(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__([nn.Parameter(torch.ones(1))], {})

    with scaled(Strange(), 1.0):
        pass
    with pytest.raises(ValueError, match="Strange has no learning rate"), scaled(Strange(), 2.0):
        pass


# The rule that fits the optimizer


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (torch.optim.SGD, "adascale"),
        (torch.optim.Adam, "sqrt"),
        (torch.optim.AdamW, "sqrt"),
        (torch.optim.NAdam, "sqrt"),
        (torch.optim.RAdam, "sqrt"),
        (torch.optim.Adamax, "sqrt"),
        (torch.optim.Adagrad, "none"),
        (torch.optim.RMSprop, "none"),
    ],
)
def test_auto_is_the_rule_of_the_optimizer(make: type[torch.optim.Optimizer], rule: Rule) -> None:
    assert rule_for("auto", optimizer_of(make, lr=0.1)) == rule
    assert rule_for("auto", optimizer_of(type("Own", (make,), {}), lr=0.1)) == rule, "also of a subclass"


@pytest.mark.parametrize("rule", ["none", "linear", "sqrt", "adascale"])
def test_a_rule_of_the_job_file_wins(rule: RuleSetting) -> None:
    assert rule_for(rule, optimizer_of(torch.optim.Adagrad, lr=0.1)) == rule
