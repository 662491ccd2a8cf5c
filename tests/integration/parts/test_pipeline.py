"""A pipeline of one stage in this process: its gradients, its loss, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from headway.train.gradients.averaging import Gradients
from headway.train.gradients.pipeline import Pipeline
from headway.train.gradients.stages import PipelinePlace

CPU = torch.device("cpu")


@pytest.fixture
def place() -> Iterator[PipelinePlace]:
    """The place of the only stage."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield PipelinePlace(dist.group.WORLD, 0, 1)
    dist.destroy_process_group()


def begin(module: nn.Module, place: PipelinePlace | None, samples: int) -> Gradients:
    gradients = Gradients(module, device=CPU)
    gradients.pipeline = place
    gradients.begin(samples, global_batch=samples, first=True, last=True)
    return gradients


def data(samples: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(samples)
    return torch.randn(samples, 3), torch.randn(samples, 2)


@pytest.mark.parametrize("samples", [1, 5, 6, 8])
def test_any_number_of_samples_has_the_gradient_of_the_mean_loss(place: PipelinePlace, samples: int) -> None:
    module, (x, y) = nn.Linear(3, 2), data(samples)
    expected = nn.functional.mse_loss(module(x), y)
    gradients = torch.autograd.grad(expected, list(module.parameters()))
    pipeline = Pipeline(begin(module, place, samples), nn.functional.mse_loss, 4, CPU)
    for _ in range(2):
        module.zero_grad()
        assert pipeline.step(x, target=y).item() == pytest.approx(expected.item())
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    assert pipeline.evaluate(x, target=y).item() == pytest.approx(expected.item())


class Counter(nn.Module):
    """Counts its forward passes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_step_changes_buffers_and_draws_numbers_once_for_each_micro_batch(place: PipelinePlace) -> None:
    module, (x, y) = nn.Sequential(Counter(), nn.Dropout(0.5)), data(8)
    pipeline = Pipeline(begin(module, place, 8), nn.functional.mse_loss, 4, CPU)
    torch.manual_seed(0)
    pipeline.step(x, target=y)
    drawn = torch.get_rng_state()
    assert module[0].calls == 4
    torch.manual_seed(0)
    for part in x.chunk(4):
        module(part)
    assert torch.equal(torch.get_rng_state(), drawn)


class Labelled(nn.Linear):
    """Returns its output under a name."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"scores": super().forward(x)}


def test_wrong_uses_are_refused(place: PipelinePlace) -> None:
    x, y = data(4)
    with pytest.raises(ValueError, match="micro_batches is 0"):
        Pipeline(begin(nn.Linear(3, 2), place, 4), nn.functional.mse_loss, 0, CPU)
    with pytest.raises(RuntimeError, match="no stages"):
        Pipeline(begin(nn.Linear(3, 2), None, 4), nn.functional.mse_loss, 2, CPU).step(x, target=y)
    with pytest.raises(ValueError, match="pipeline stage 0 returned"):
        Pipeline(begin(Labelled(3, 2), place, 4), nn.functional.mse_loss, 2, CPU).step(x, target=y)
    longer = Pipeline(begin(nn.Linear(3, 2), place, 4), nn.functional.mse_loss, 2, CPU)
    longer.step(x.expand(5, 4, 3).transpose(0, 1), target=y.expand(5, 4, 2).transpose(0, 1))
    with pytest.raises(ValueError, match="have one shape"):
        longer.step(x, target=y)
