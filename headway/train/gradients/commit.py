"""The interface of a step that all ranks take, or none."""

from __future__ import annotations

from typing import Protocol


class StepCommit(Protocol):
    """An agreement of the ranks on each optimizer step, for models whose parts have copies on other ranks."""

    def agree(self) -> bool:
        """Return True if every rank takes the step. A rank that returned False may have to take it later."""

    def follow(self) -> None:
        """Repeat the optimizer step of this rank on the copy that it holds for another one, if there is one."""

    def before_closure(self) -> None:
        """Prepare for `optimizer.step(closure)`, which computes gradients within the step.

        Raises:
            RedundancyUnsupported: another rank needs the gradients before the step.
        """
