"""A copy of shards takes the same steps as they do, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from headway.train.sharding.redundancy import Redundancy, RedundancyUnsupported
from headway.train.sharding.shadow import Shadow, pack, unpack

CPU = torch.device("cpu")
OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda groups: torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1),
    lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
    lambda groups: torch.optim.Adam(groups, lr=0.1, amsgrad=True, weight_decay=0.1),
    lambda groups: torch.optim.SGD(groups, lr=0.1),
    lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_it_follows_every_step_and_setting(
    make: Callable[[Any], torch.optim.Optimizer], steps_before: int
) -> None:
    torch.manual_seed(0)
    parameters = {name: nn.Parameter(torch.randn(5, 3)) for name in ("a", "b", "c")}
    optimizer = make(
        [{"params": [parameters["a"]]}, {"params": [parameters["b"], parameters["c"]], "lr": 0.01}]
    )

    def step(shadow: Shadow | None, *, without: str) -> None:
        gradients = {name: None if name == without else torch.randn(5, 3) for name in parameters}
        for name, one in parameters.items():
            one.grad = gradients[name]
        optimizer.step()
        if shadow is not None:
            shadow.step(gradients)

    for _ in range(steps_before):
        step(None, without="")
    tensors = {(name, ""): one.detach().clone() for name, one in parameters.items()}
    for name, one in parameters.items():
        for key, value in optimizer.state.get(one, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == one.shape:
                tensors[name, key] = value.clone()
    shadow = Shadow(optimizer, {id(one): name for name, one in parameters.items()}, tensors)
    for number in range(4):
        optimizer.param_groups[1]["lr"] *= 0.5
        step(shadow, without="b" if number == 2 else "")
    copies = shadow.tensors
    for name, one in parameters.items():
        assert torch.equal(copies.pop((name, "")), one.detach())
        for key, value in optimizer.state[one].items():
            if isinstance(value, torch.Tensor) and value.shape == one.shape:
                assert torch.equal(copies.pop((name, key)), value)
    assert not copies


def test_an_optimizer_that_is_not_known_to_be_elementwise_is_refused() -> None:
    class Other(torch.optim.AdamW):
        """A class of the script, whose steps may be anything."""

    with pytest.raises(RedundancyUnsupported) as refused:
        Redundancy(Other([nn.Parameter(torch.zeros(1))]), CPU)
    assert refused.value.code == "REDUNDANCY_UNSUPPORTED"
    assert "Other" in str(refused.value)


def test_tensors_of_any_type_and_layout_go_through_one_buffer() -> None:
    sent = [
        torch.randn(3, 4).T,
        torch.tensor([True, False, True]),
        torch.empty(0, 3),
        torch.arange(5),
        torch.ones(2, 3)[:, :1],
    ]
    received = [torch.zeros(one.shape, dtype=one.dtype) for one in sent]
    unpack(pack(sent, CPU), received)
    assert all(torch.equal(one, other) for one, other in zip(sent, received, strict=True))
    assert pack([], CPU).numel() == 0
