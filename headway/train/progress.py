"""Progress of training in units of the job's own batch: of each step, for the schedules, and to the end."""

from __future__ import annotations

from dataclasses import replace

from headway.train.checkpoint.replica import Place
from headway.train.data.batching import Batching
from headway.train.data.boundary import ACCUMULATE, Agreement, BoundaryRequest, Statement
from headway.train.data.goal import Gain, TrainingGoal, gain_of
from headway.train.data.ledger import Ledger
from headway.train.data.position import Step
from headway.train.gradients.averaging import Gradients
from headway.train.host.output import warn


class StepProgress:
    """The progress of the present step, and the clock of the learning-rate schedules in `gradients`."""

    def __init__(self, goal: TrainingGoal, batching: Batching, gradients: Gradients) -> None:
        self.efficiency = 1.0
        """Statistical efficiency of the present step, as this rank computes it."""
        self._goal = goal
        self._batching = batching
        self._gradients = gradients
        self._stepped = False
        self._passes = 0
        self._named = False  # a batch without a step

    def begin(self, place: Place, step: Step) -> None:
        """Begin a step at `place`."""
        self.efficiency = self._batching.efficiency
        self._set_clock(self._after(place, step, Ledger(), self.efficiency), within_step=True)

    def statement(self, request: BoundaryRequest, ordered: int, mine: Ledger) -> Statement:
        """Return this rank's message at the start of a step, with its measurements of the step before.

        `ordered` is the generation of the newest order that it has read, and `mine` the ledger of its samples.
        """
        probe, compute_s = self._gradients.probe, self._gradients.meter.compute_s
        said = Statement(
            *(request, ordered, mine.count, mine.total, mine.squares, compute_s),
            efficiency=self.efficiency,
            stepped=int(self._stepped) | self._passes << 1,
        )
        if probe is None:
            return said
        every = self._batching.noise_every_wanted
        return replace(said, square=probe.square, squared_mean=probe.squared_mean, noise_every=every)

    def commit(self, place: Place, step: Step, trained: Ledger, agreement: Agreement | None) -> Place:
        """Return the position after the step, with the progress that the ranks agree on.

        Without an agreement, because a peer was lost, the next synchronisation makes the ranks equal.
        """
        self._stepped = self._gradients.stepped
        self._passes = 0 if self._gradients.left_out else self._gradients.parts.passes
        self._gradients.carried.batch_ended(
            stepped=self._stepped or self._gradients.asked_to_step,
            holds_gradients=not self._stepped and self._gradients.held,
        )
        if (
            not (self._stepped or self._named or self._gradients.left_out)
            and self._batching.split.rank == 0
            and not self._is_scaled
        ):
            self._named = True
            warn(
                f"the batch at sample {place.position.samples} of epoch {place.position.epoch} ended without "
                "optimizer.step(); its samples count as trained, and changes of size and checkpoints wait for the next step, but "
                f"the loss of a rank returns the job to its last checkpoint: {ACCUMULATE}"
            )
        efficiency = self.efficiency if agreement is None else agreement.efficiency
        after = self._after(place, step, trained, efficiency)
        if self._gradients.carried.proven and not after.accumulates:
            after = replace(after, accumulates=True)
        return self.show(after)

    def with_noise(self, place: Place) -> Place:
        """Return the position with the present estimate of the gradient noise, which checkpoints keep."""
        return replace(place, noise=self._batching.noise_state) if self._batching.adaptive else place

    def show(self, place: Place) -> Place:
        """Set the schedules' clock to this position between two steps, and return the position."""
        self._set_clock(place, within_step=False)
        return place

    def finished(self, place: Place) -> bool:
        """Return True if training has reached its end at this position."""
        return self._goal.reached(place.position.epoch, place.progress, place.reference_steps)

    def finished_within_epoch(self, place: Place) -> bool:
        """Return True if training has reached its end before that of the epoch's data."""
        length = self._goal.dataset_samples
        return self.finished(place) and (length is None or 0 < place.position.samples < length)

    @property
    def _is_scaled(self) -> bool:
        """True with a `GradScaler`, which skips the steps whose gradients overflow."""
        return self._gradients.loss_scale() != 1.0

    def _after(self, place: Place, step: Step, trained: Ledger, efficiency: float) -> Place:
        gain: Gain = gain_of(step.batch, self._batching.bounds.global_batch, efficiency)
        return place.advance(len(step.batch), trained, gain)

    def _set_clock(self, place: Place, *, within_step: bool) -> None:
        self._gradients.clock = self._goal.clock(
            place.steps, place.reference_steps, place.samples, place.progress, within_step=within_step
        )
