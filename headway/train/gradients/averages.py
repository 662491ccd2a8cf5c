"""Averages of a model's parameters by torch's `AveragedModel`, which take each step once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

from headway.train.gradients.averaging import Gradients


def average_once_per_batch(average: AveragedModel, gradients: Gradients) -> None:
    """Make `update_parameters` of an average do nothing while a global batch is incomplete, or will be repeated after a loss."""
    if not isinstance(average.update_parameters, _Update):
        average.update_parameters = _Update(average, gradients)  # type: ignore[method-assign]


class _Update:
    """The method `update_parameters` of one average. A copy of the average has torch's own."""

    def __init__(self, average: AveragedModel, gradients: Gradients) -> None:
        self._average, self._gradients = average, gradients
        self._update = average.update_parameters

    def __call__(self, model: nn.Module) -> None:
        waits = self._gradients.accumulating or self._gradients.broken
        if not (waits or self._gradients.parts.passed_over):
            self._update(model)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (self._average, "update_parameters")
