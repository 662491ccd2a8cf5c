"""The place of a rank in its pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class PipelinePlace:
    """Stage number `index` of the `count` stages of a pipeline, whose ranks form `group` in the order of stages."""

    group: ProcessGroup
    index: int
    count: int

    @property
    def is_last(self) -> bool:
        """True for the stage that computes the loss."""
        return self.index == self.count - 1
