"""Gradients that a script keeps over several batches until its own optimizer step, and the changes that wait for that step."""

from __future__ import annotations

from enum import IntEnum

_LONGEST_WAIT_S = 60.0
_LONGEST_WAIT_OF_STOP_S = 10.0
"""Maximum wait for the script's own step, of which a stop leaves time to save."""
_UNKNOWN_RHYTHM = 64
"""Batches without a step after which nothing waits any more, while the script has not yet stepped after several of them."""


class Wait(IntEnum):
    """A rank's answer to the question whether a change waits for the script's own step. The highest of all ranks counts."""

    NOTHING_CARRIED = 0
    FOR_STEP = 1
    GIVEN_UP = 2


class CarriedGradients:
    """The batches since the last optimizer step whose gradients the script still holds."""

    def __init__(self) -> None:
        self.batches = 0
        """Batches that ended without a step, or without `zero_grad` since."""
        self._longest = 0
        self._waits_since_s: float | None = None

    def zeroed(self) -> None:
        """Note that the script has discarded the gradients of the batches before the present one."""
        self.batches = 0

    def batch_ended(self, *, stepped: bool, holds_gradients: bool) -> None:
        """Note the end of a batch: `stepped` if the optimizer used its gradients, and those carried before."""
        if stepped:
            self._longest = max(self._longest, self.batches)
            self.batches, self._waits_since_s = 0, None
        elif holds_gradients:
            self.batches += 1

    @property
    def known(self) -> bool:
        """True if the script has carried gradients over batches."""
        return bool(self._longest or self.batches)

    def dropped(self) -> int:
        """Return the number of batches whose gradients are discarded now."""
        lost, self.batches, self._waits_since_s = self.batches, 0, None
        return lost

    def wait(self, now_s: float, *, stops: bool) -> Wait:
        """Return whether a change that is due at `now_s` (monotonic) waits for the script's own step; `stops`: it is a stop.

        It waits for twice as many batches as the script has carried before a step, at most 60 s, and 10 s for a stop.
        """
        if not self.batches:
            return Wait.NOTHING_CARRIED
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        limit_s = _LONGEST_WAIT_OF_STOP_S if stops else _LONGEST_WAIT_S
        in_rhythm = self.batches <= (2 * self._longest or _UNKNOWN_RHYTHM)
        return Wait.FOR_STEP if in_rhythm and now_s - self._waits_since_s < limit_s else Wait.GIVEN_UP
