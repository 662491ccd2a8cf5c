"""One rank's weights and sources in partial steps, among peers that agree or not."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn

from headway.train.gradients.depths import PartialStep
from headway.train.gradients.partial import PartialBackward
from headway.train.membership.peers import Peers


class Told:
    """Peers that choose the same cuts, or one of which chooses others."""

    def __init__(self, rank: int, world_size: int, *, agree: bool = True) -> None:
        self.rank = rank
        self.world_size = world_size
        self.is_main = rank == 0
        self._agree = agree

    def gather(self, *numbers: int) -> list[list[int]]:
        other = list(numbers) if self._agree else [*numbers[:-1], numbers[-1] + 1]
        return [list(numbers), *[other] * (self.world_size - 1)]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4)))


def surveyed(model: nn.Module, rank: int, ranks: int, *, agree: bool = True) -> PartialBackward:
    partial = PartialBackward(model, 0.5, cast("Peers", Told(rank, ranks, agree=agree)))
    assert partial.take_depths() is None
    partial.begin(None)
    partial.forward(model, (torch.ones(1, 2),), {})
    return partial


def test_depths_are_told_once() -> None:
    partial = surveyed(network(), 0, 3)
    assert partial.take_depths() == (0.5, 0.75, 1.0)
    assert partial.take_depths() is None


def test_ranks_that_disagree_compute_everything(capfd: pytest.CaptureFixture[str]) -> None:
    assert surveyed(network(), 0, 2, agree=False).take_depths() == (1.0, 1.0)
    assert "partial back-propagation does not suit this model" in capfd.readouterr().err
    assert surveyed(network(), 1, 2, agree=False).take_depths() == (1.0, 1.0)
    assert not capfd.readouterr().err, "rank 0 says it"


@pytest.mark.parametrize(
    ("rank", "weights"),
    [
        # Levels 0, 1, 2 of ranks 1, 2, 0, with 5, 3 and 2 samples. Layers 0 and 1 are computed from levels 2 and 1 on.
        (0, [2 / 2, 2 / 5, 2 / 10, 2 / 10]),
        (1, [0.0, 0.0, 5 / 10, 5 / 10]),
        (2, [0.0, 3 / 5, 3 / 10, 3 / 10]),
    ],
)
def test_weights_by_hand(rank: int, weights: list[float]) -> None:
    model = network()
    partial = surveyed(model, rank, 3)
    partial.begin(PartialStep((2, 0, 1), (2, 5, 3)))
    gradients = [torch.ones(2, 2) for _ in range(4)]
    gradients[0][0, 0] = float("nan") if weights[0] == 0.0 else 1.0
    partial.weigh(gradients, list(model.parameters()), (2, 5, 3)[rank])
    for gradient, weight in zip(gradients, weights, strict=True):
        torch.testing.assert_close(gradient, torch.full((2, 2), weight))


def test_a_layer_of_one_rank_comes_from_it() -> None:
    model = network()
    partial = surveyed(model, 1, 3)
    partial.begin(PartialStep((2, 0, 1), (2, 5, 3)))
    layers = list(model.parameters())
    assert partial.source(layers[:1]) == 0
    assert partial.source(layers[:2]) is None
    partial.begin(PartialStep((0, 1, 2), (5, 3, 2)))
    assert partial.source(layers[:1]) == 2


@pytest.mark.parametrize(("level", "computed"), [(0, 2), (1, 3), (2, 4)])
def test_the_backward_pass_stops_at_the_cut(level: int, computed: int) -> None:
    model = network()
    partial = surveyed(model, 0, 3)
    partial.begin(PartialStep((level, (level + 1) % 3, (level + 2) % 3), (2, 2, 2)))
    assert partial.active
    partial.forward(model, (torch.ones(1, 2),), {}).sum().backward()
    has = [parameter.grad is not None for parameter in model.parameters()]
    assert has == [False] * (4 - computed) + [True] * computed
    partial.close()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_parameters_without_gradients_are_reached_all_the_same() -> None:
    """DDP waits for its hook of every parameter."""
    model = network()
    partial = surveyed(model, 0, 2)
    partial.begin(PartialStep((0, 1), (2, 2)))
    reached = []
    hooks = []
    for index, parameter in enumerate(model.parameters()):
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        hooks.append(node.register_hook(lambda *_, index=index: reached.append(index)))  # type: ignore[union-attr]
        hooks.append(node)
    partial.forward(model, (torch.ones(1, 2),), {}).sum().backward()
    assert sorted(reached) == [0, 1, 2, 3]


def test_a_script_may_change_the_output_in_place() -> None:
    model = network()
    partial = surveyed(model, 0, 2)
    partial.begin(PartialStep((0, 1), (2, 2)))
    output = partial.forward(model, (torch.ones(1, 2),), {})
    output *= 2
    output.sum().backward()
    assert model[3].weight.grad is not None


def test_a_whole_step_has_no_hook() -> None:
    model = network()
    partial = surveyed(model, 0, 2)
    partial.begin(PartialStep((0, 1), (2, 2)))
    partial.forward(model, (torch.ones(1, 2),), {})
    partial.begin(None)
    assert not partial.active
    partial.forward(model, (torch.ones(1, 2),), {}).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
