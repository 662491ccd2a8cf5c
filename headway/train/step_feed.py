"""The steps of a training run for a framework that has its own training loop and takes whole steps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from typing import Any

from headway.train.data.position import Step
from headway.train.membership.meeting import PeersLost
from headway.train.source import BatchSource
from headway.train.training import Training

_REAL, _BITS = struct.Struct("<d"), struct.Struct("<q")


class StepFeed:
    """The remaining optimizer steps, one at a time. Made by `Run.step_feed`.

    The framework computes a gradient of all `batches` of a step. If `accept` refuses it because a peer was lost, the
    framework calls `advance` and computes the gradient of the step that follows, usually the same one. Thus its loop
    sees only steps that are taken.
    """

    def __init__(self, training: Training, source: BatchSource, complete: Callable[[], None]) -> None:
        self.batches: list[Any] = []
        """All batches of this rank's part of the present step."""
        self.shares: list[float] = []
        """Share of each batch in the samples of the global batch, by which its gradient counts; 0 for a rank without a part."""
        self.over = False
        """True once no step is left."""
        self._training = training
        self._source = source
        self._complete = complete
        self._step: Step | None = None
        self._steps = self._remaining()

    @property
    def epoch(self) -> float:
        """Epochs of data after the present step, as a fraction."""
        position, length = self._training.place.position, self._source.epoch_samples
        assert length is not None
        return position.epoch + (position.samples if self._step is None else self._step.batch.stop) / length

    @property
    def ends_epoch(self) -> bool:
        """True if the present step is the last one of the epoch."""
        return self._step is not None and self._step.batch.stop == self._source.epoch_samples

    def advance(self) -> None:
        """Commit the present step and begin the next one. Members may change here, and the process may end."""
        self._step = step = next(self._steps, None)
        self.over = step is None
        self.batches = self.shares = []
        if step is not None:
            self.batches = self._source.fetch_step()
            self.shares = [len(part) / len(step.batch) for part in step.micro_batches]

    def take(self) -> Iterator[tuple[Any, float]]:
        """Yield each batch with its share. Its gradient is accumulated until the next."""
        return zip(self._source, self.shares, strict=True)

    def total(self, number: float) -> float | None:
        """Return the sum of a number over the ranks, which all call this; None if a peer was lost."""
        peers = self._training.peers
        try:
            gathered = peers.gather(*_BITS.unpack(_REAL.pack(number)))
        except PeersLost:
            self._training.gradients.broken = True
            return None
        return sum((float(*_REAL.unpack(_BITS.pack(bits))) for (bits,) in gathered), 0.0)

    def accept(self) -> bool:
        """Return True if the gradient is complete. The optimizer then steps, even if a peer is lost meanwhile."""
        return self._training.gradients.accept()

    def evaluated(self) -> None:
        """Leave the time of the present step out of the job's speed, because the framework evaluated within it."""
        self._training.evaluates = True

    def finish(self) -> None:
        """Commit the present step, save the result, and end the training. Every rank calls this after the same step."""
        self._steps.close()
        self._complete()

    def _remaining(self) -> Generator[Step, None, None]:
        training = self._training
        training.join()
        while not training.finished:
            epoch = training.place.position.epoch
            yield from self._source.steps()
            training.end_epoch(epoch)
