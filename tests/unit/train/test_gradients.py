from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from headway.train.gradients import Gradients, OncePerBatch, step_once_per_batch
from headway.train.position import divide

CPU = torch.device("cpu")
Body = Callable[[torch.optim.Optimizer, Callable[[], torch.Tensor]], None]


def zero_first(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def zero_last(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()


def with_a_closure(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value.item()

    optimizer.step(closure)


def trained(body: Body, parts: int, *, steps: int = 3, samples: int = 11) -> torch.Tensor:
    """The parameters after some steps of `body` over micro-batches in so many parts."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    x, y = torch.randn(steps, samples, 4).double(), torch.randn(steps, samples, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gradients = Gradients(model, device=CPU)
    step_once_per_batch(optimizer, gradients)
    for step in range(steps):
        micro_batches = divide(range(samples), (1,) * parts)
        for number, part in enumerate(micro_batches):
            gradients.begin(
                len(part), global_batch=samples, first=number == 0, last=number == len(micro_batches) - 1
            )
            chosen = slice(part.start, part.stop)
            body(optimizer, lambda: (model(x[step, chosen]) - y[step, chosen]).square().mean())  # noqa: B023
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("body", [zero_first, zero_last])
@pytest.mark.parametrize("parts", [2, 3, 4, 11])
def test_accumulating_over_uneven_parts_is_the_step_of_the_whole_batch(body: Body, parts: int) -> None:
    torch.testing.assert_close(trained(body, parts), trained(body, 1), rtol=1e-12, atol=1e-12)


def test_a_closure_accumulates_as_well() -> None:
    torch.testing.assert_close(trained(with_a_closure, 1), trained(zero_first, 1), rtol=0, atol=0)
    torch.testing.assert_close(trained(with_a_closure, 3), trained(zero_first, 1), rtol=1e-12, atol=1e-12)


def test_gradients_are_complete_before_the_step_so_that_they_can_be_clipped() -> None:
    model = nn.Linear(1, 1, bias=False)
    gradients = Gradients(model, device=CPU)
    for number, size in enumerate((2, 1)):
        gradients.begin(size, global_batch=3, first=number == 0, last=number == 1)
        assert gradients.accumulating == (number == 0)
        model(torch.ones(size, 1)).mean().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx(1.0)


@pytest.mark.parametrize("made", ["before", "after"])
def test_a_schedule_steps_once_per_batch_and_does_not_complain(made: str) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradients = Gradients(model, device=CPU)

    def schedule() -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    scheduler = schedule() if made == "before" else None
    step_once_per_batch(optimizer, gradients)
    stepping = OncePerBatch(scheduler or schedule(), gradients)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for last in (False, True):
            gradients.begin(1, global_batch=2, first=not last, last=last)
            zero_first(optimizer, lambda: model(torch.ones(1, 1)).mean())
            stepping.step()
    assert stepping.get_last_lr() == [0.5]
    assert optimizer.param_groups[0]["lr"] == 0.5
    torch.save(stepping.state_dict(), "/dev/null")


def test_a_step_is_noticed() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradients = Gradients(model, device=CPU)
    step_once_per_batch(optimizer, gradients)
    for last in (False, True):
        gradients.begin(1, global_batch=2, first=not last, last=last)
        zero_first(optimizer, lambda: model(torch.ones(1, 1)).mean())
        assert gradients.stepped == last


def test_an_incomplete_batch_that_is_abandoned_leaves_nothing() -> None:
    model = nn.Linear(1, 1)
    gradients = Gradients(model, device=CPU)
    gradients.begin(1, global_batch=2, first=True, last=False)
    model(torch.ones(1, 1)).mean().backward()
    gradients.abandon()
    assert not gradients.accumulating
    assert model.weight.grad is None
