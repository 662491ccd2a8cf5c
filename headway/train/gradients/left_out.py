"""Batches for a part of which the script computes no gradient: it leaves out `backward()`, because a loss is not a number.

On one rank that takes the whole batch at once, the loss of the whole batch decides, and no step follows. Therefore a batch
counts as left out if a part of it has no gradient, on any rank and in any micro-batch, while another part has one. Nothing
steps then, and the gradients are those from before the batch. A rank without a gradient joins the reduction of the others
with NaN. So only a batch whose reduced gradient has NaN needs an exchange of messages, and the usual step has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

NOT_A_NUMBER = float("nan")


class Parts:
    """The micro-batches of the present batch on this rank, and those of them without a gradient."""

    def __init__(self) -> None:
        self.reached = False
        """True once a backward pass has reached a parameter in the present micro-batch."""
        self.asked_to_step = False
        """True once the script has called `step()` in the present micro-batch."""
        self.missing = 0
        """Micro-batches with samples that ended without a gradient."""
        self.left_out = False
        """True if the batch takes no step, because a part of it has no gradient."""
        self.passed_over = False
        """True if the script has also passed over `step()` for the part without a gradient, and so over its schedules."""
        self.settled = False
        """True once it is known whether the batch is left out."""
        self.mark: torch.Tensor | None = None
        """True in an element if the reduced gradient has NaN, on all ranks alike, as it has if a part is missing."""
        self.passes = 0
        """Backward passes of the batch whose gradients were averaged."""
        self._with_samples = self._quiet = 0
        self._kept: list[tuple[nn.Parameter, torch.Tensor]] = []

    def begin_batch(self, carried: Sequence[nn.Parameter]) -> None:
        """Begin a batch with the gradients that the script carries in these parameters from batches before."""
        self.missing = self._with_samples = self._quiet = 0
        self.left_out = self.passed_over = self.settled = False
        self.mark, self.passes = None, 0
        self._kept = [(one, one.grad.clone()) for one in carried if one.grad is not None]

    def begin_part(self, samples: int) -> None:
        """Begin a micro-batch; one without samples does not count."""
        self.reached = self.asked_to_step = False
        self._with_samples += samples > 0

    def end_part(self, samples: int) -> None:
        """End the present micro-batch."""
        if samples > 0 and not self.reached:
            self.missing += 1
            self._quiet += not self.asked_to_step

    def end_pass(self, mark: torch.Tensor) -> None:
        """End a backward pass with an average, in which an element is NaN or not."""
        self.mark, self.passes = mark, self.passes + 1

    def discard_carried(self) -> None:
        """Note that the script has zeroed the gradients from before the batch."""
        self._kept = []

    @property
    def counts(self) -> tuple[int, int, int]:
        """Micro-batches without a gradient, all of them, and those without a gradient and without a call of `step()`."""
        return self.missing, self._with_samples, self._quiet

    def settle(self, everyone: Sequence[Sequence[int]]) -> bool:
        """Return True if the batch is left out, by the `counts` of all ranks. A batch without any gradient is the script's own."""
        missing, parts, quiet = (sum(one[field] for one in everyone) for field in range(3))
        self.settled, self.left_out = True, 0 < missing < parts
        self.passed_over = self.left_out and quiet > 0
        return self.left_out

    def restore(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give these parameters the gradients that they had before the batch."""
        for one in parameters:
            one.grad = None
        for one, gradient in self._kept:
            one.grad = gradient.clone()
