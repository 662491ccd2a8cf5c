"""Gradients that a script keeps over several batches until its own optimizer step, and the changes that wait for that step."""

from __future__ import annotations

from enum import IntEnum

_LONGEST_WAIT_S = 60.0
_LONGEST_WAIT_OF_STOP_S = 10.0
"""Maximum wait for the script's own step, of which a stop leaves time to save."""
_UNKNOWN_RHYTHM = 64
"""Batches without a step after which nothing waits any more, while the script has not yet stepped after several of them."""

_STEPS_OF_EVERY_BATCH = 2
"""Successive batches with a step each that show a script that carries nothing. A batch that was counted twice may end with one."""


_STEPS_COMPARED = 2
"""Steps after a restart of which the numbers of batches are compared."""


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
        self._since_step = 0
        self._repeated = 0
        self._uses_carried = False  # in the present batch
        self._longest = 0
        self._waits_since_s: float | None = None
        self._lengths: list[int] | None = None  # of the steps since a restart; None once two are known

    def resume(self) -> None:
        """Note that this process has loaded the state of a script that accumulates, and not the script's own counter."""
        self._lengths = []

    def uneven_restart(self) -> tuple[int, int] | None:
        """Return the batches of the first two steps since `resume`, once, if they differ: the counter may have begun anew."""
        if self._lengths is None or len(self._lengths) < _STEPS_COMPARED:
            return None
        first, second = self._lengths[:_STEPS_COMPARED]
        self._lengths = None
        return (first, second) if first != second else None

    def zeroed(self) -> None:
        """Note that the script has discarded the gradients of the batches before the present one."""
        self.batches = 0

    def used(self) -> None:
        """Note that the optimizer uses the carried gradients in the present batch, after which the script may zero them."""
        self._uses_carried = self._uses_carried or self.batches > 0
        self._longest = max(self._longest, self.batches)
        self.batches, self._waits_since_s = 0, None

    def batch_ended(self, *, stepped: bool, holds_gradients: bool) -> None:
        """Note the end of a batch: `stepped` if the optimizer used its gradients, and those carried before."""
        if stepped:
            self.used()
            if self._lengths is not None:
                self._lengths.append(self._since_step + 1)
            self._since_step = 0
            if not self._uses_carried:
                self._repeated = max(0, self._repeated - 1)
            self._uses_carried = False
        elif holds_gradients:
            self.batches += 1
            self._since_step += 1

    @property
    def proven(self) -> bool:
        """True if the optimizer has used gradients of several batches. One that merely skips a batch zeroes before its next."""
        return self._longest > 0

    def repeat(self) -> None:
        """Note that the script sees a batch again because a peer was lost, before it is known to carry gradients."""
        self._repeated = _STEPS_OF_EVERY_BATCH

    @property
    def counted_twice(self) -> bool:
        """True if the script turns out to count batches, and has counted one twice that `repeat` noted."""
        return bool(self._repeated) and self.proven

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
