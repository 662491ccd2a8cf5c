"""Steps since training began, of a script whose counter begins anew in each epoch. The module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EpochSteps:
    """The epochs that a process has printed so far. A step below half of the last one begins another epoch."""

    before: int = 0
    """Steps of the epochs before the present one."""
    latest: int = 0
    length: int | None = None
    """Steps of the present epoch, or of the whole training in the first one; None if the script does not say."""
    first_epoch: int = 1
    """Number that the script gives to its first epoch."""

    def count(
        self, step: int, total: int | None, epoch: float | None, epochs: float | None
    ) -> tuple[int, int | None]:
        """Return the number of the step since training began, and that of the last step if it is known.

        If the script prints `epoch` of `epochs`, `step` and `total` count within the epoch. The number of an epoch counts
        from 1, or from 0 where the process has printed epoch 0.
        """
        if epoch is not None and epochs is not None and total:
            self.first_epoch = 0 if epoch < 1 else self.first_epoch
            ended = max(0, int(epoch) - self.first_epoch)
            return ended * total + step, int(epochs) * total
        if 2 * step < self.latest:
            self.before += max(self.latest, self.length or 0)
        self.latest, self.length = step, total
        return self.before + step, None if self.before else total
