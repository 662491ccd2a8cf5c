"""Places where a backward pass can stop, in small models by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.train.gradients.cuts import Survey

DEPTHS = (0.25, 0.5, 0.75, 1.0)


class Inside(nn.Module):
    """A layer with a residual connection inside of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(self.norm(x))  # type: ignore[no-any-return]


class Model(nn.Module):
    """Four layers with a forward pass of the test's choice."""

    def __init__(self, forward: Callable[[nn.ModuleList, Tensor], object]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.passes = forward

    def forward(self, x: Tensor) -> object:
        return self.passes(self.layers, x)


def in_sequence(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = torch.tanh(layer(x))
    return x


def found(model: nn.Module, depths: tuple[float, ...] = DEPTHS) -> list[tuple[str, float, list[str]] | None]:
    """The module, the depth and the incomplete parameters of the cut for each depth."""
    survey = Survey(model)
    with survey.recording():
        output = model(torch.randn(3, 4))
    modules = {id(module): name for name, module in model.named_modules()}
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    return [
        None
        if cut is None
        else (modules[id(survey.modules[cut.module])], cut.depth, [names[one] for one in sorted(cut.before)])
        for cut in survey.cuts(output, depths)
    ]


def before(*layers: int) -> list[str]:
    return [f"layers.{layer}.{name}" for layer in layers for name in ("weight", "bias")]


def test_layers_in_sequence() -> None:
    assert found(Model(in_sequence)) == [
        ("layers.3", 0.25, before(0, 1, 2)),
        ("layers.2", 0.5, before(0, 1)),
        ("layers.1", 0.75, before(0)),
        None,
    ]


def test_a_depth_between_two_layers_is_rounded_up() -> None:
    assert found(Model(in_sequence), (0.3, 0.6)) == [
        ("layers.2", 0.5, before(0, 1)),
        ("layers.1", 0.75, before(0)),
    ]


def test_the_order_is_that_of_the_calls() -> None:
    def backwards(layers: nn.ModuleList, x: Tensor) -> Tensor:
        return in_sequence(nn.ModuleList(reversed(list(layers))), x)

    assert found(Model(backwards), (0.25,)) == [("layers.0", 0.25, before(1, 2, 3))]


def test_a_block_with_a_residual_connection_is_cut_before_and_not_within() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Inside(), Inside(), nn.Linear(4, 4))
    # Six layers: the blocks have two each. At least 0.3 is 3 of 6: the input of the second block.
    cuts = found(model, (0.1, 0.3, 0.6))
    assert [cut and cut[:2] for cut in cuts] == [("3", pytest.approx(1 / 6)), ("2", 0.5), ("1", 5 / 6)]


def test_a_connection_around_a_layer_keeps_the_pass_from_stopping_there() -> None:
    def around(layers: nn.ModuleList, x: Tensor) -> Tensor:
        first = layers[0](x)
        return layers[3](first + layers[2](layers[1](first)))  # type: ignore[no-any-return]

    # Behind the sum stands only the last layer, and before the layers within nothing can stop.
    assert found(Model(around)) == [("layers.3", 0.25, before(0, 1, 2)), None, None, None]


def test_two_branches_are_cut_by_neither() -> None:
    def branches(layers: nn.ModuleList, x: Tensor) -> Tensor:
        return layers[1](layers[0](x)) + layers[3](layers[2](x))  # type: ignore[no-any-return]

    cuts = found(Model(branches), (0.75,))
    # The input of either second layer separates the first layer of its own branch.
    assert cuts == [("layers.3", 0.75, before(2))]


def test_a_shared_weight_counts_as_its_first_use() -> None:
    model = Model(in_sequence)
    model.layers[3].weight = model.layers[0].weight
    cuts = found(model, (0.5,))
    assert cuts[0] is not None
    assert set(cuts[0][2]) == {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"}


def test_frozen_layers_are_no_layers() -> None:
    model = Model(in_sequence)
    model.layers[0].requires_grad_(requires_grad=False)
    assert found(model, (0.3, 0.6)) == [
        ("layers.3", pytest.approx(1 / 3), before(1, 2)),
        ("layers.2", pytest.approx(2 / 3), before(1)),
    ]


def test_outputs_in_containers() -> None:
    def nested(layers: nn.ModuleList, x: Tensor) -> object:
        y = in_sequence(layers, x)
        return {"logits": y, "sums": (y.sum(), 7)}

    assert found(Model(nested), (0.5,)) == [("layers.2", 0.5, before(0, 1))]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers(reentrant: bool) -> None:
    """A reentrant checkpoint hides its layers from the graph: the model is not cut."""

    def recomputed(layers: nn.ModuleList, x: Tensor) -> Tensor:
        x = layers[0](x)
        return layers[3](checkpoint(lambda y: layers[2](layers[1](y)), x, use_reentrant=reentrant))  # type: ignore[no-any-return]

    cuts = found(Model(recomputed), (0.25,))
    assert cuts == [None] if reentrant else [("layers.3", 0.25, before(0, 1, 2))]


def test_a_parameter_that_nothing_uses() -> None:
    """DDP would wait for it: the model trains as without partial back-propagation, and fails as it did."""

    def without_the_last(layers: nn.ModuleList, x: Tensor) -> Tensor:
        return layers[1](layers[0](x))  # type: ignore[no-any-return]

    assert found(Model(without_the_last), (0.25,)) == [None]


def test_recording_changes_no_value_and_leaves_no_hook() -> None:
    model = Model(in_sequence)
    x = torch.randn(3, 4)
    plain = model(x)
    survey = Survey(model)
    with survey.recording():
        recorded = model(x)
    assert isinstance(plain, Tensor)
    assert isinstance(recorded, Tensor)
    assert torch.equal(plain, recorded)
    assert not any(module._forward_pre_hooks for module in model.modules())
    gradients = [torch.autograd.grad(one.sum(), list(model.parameters())) for one in (plain, recorded)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


class InPlace(nn.Module):
    """A block that changes its input in place first."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.first(x))  # type: ignore[no-any-return]


def test_an_input_that_is_changed_in_place() -> None:
    assert found(InPlace(), (0.5,)) == [("block.1", 0.5, ["first.weight", "first.bias"])]
