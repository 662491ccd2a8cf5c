"""Choice of the global batch of a job that may change it, from measured speed and gradient noise. Pure.

A larger batch processes more samples per second, and each sample makes less progress. The product counts
(Pollux, OSDI'21, section 3): goodput(M) = throughput(M) * (phi + m0) / (phi + M), where phi is the gradient
noise scale in samples and m0 the job's own batch. Throughput is always a measurement at the present size of
the job. A change of the size brings the batch that the goodput table plans for the new size, and the choice goes
on from there.

If the learning rate does not follow the batch, a step of any batch makes the progress of one step of m0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.contract.values.efficiency import efficiency
from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import Measurement, Snapshot
from service.domain.jobs.job import Job, class_of

ENOUGH_STEPS = 100
"""Number of steps with a batch before its speed and its measured noise count.

The library measures the noise 12 times in the first 100 steps of a job (4 times on a lone rank, where a measurement costs
most of a step), and keeps the estimate when batch or members change, and in checkpoints. Later measurements are as rare as their cost demands (`headway.train.gradients.noise_schedule`).
"""
TRIAL_STEPS = 2 * ENOUGH_STEPS
"""Number of steps during which a batch is on trial: it must be better than the best smaller one by `MIN_GAIN`."""
MIN_GAIN = 1.05
"""Factor of goodput that another batch must promise (as in Pollux), which prevents oscillation."""
EXPLORE_FACTOR = 2
"""Largest multiple of the present batch for a batch without measurements."""
_MOST_NOISE = 1e200
"""Largest squared gradient norm that is believed, so that values reported by scripts do not overflow the arithmetic."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Squared norm of the true gradient (`sqr`), and trace of the covariance of one sample's gradient (`var`)."""

    sqr: float
    var: float

    @property
    def known(self) -> bool:
        """True if the two values define a noise scale."""
        return self.sqr >= 0.0 and self.var >= 0.0 and 1 / _MOST_NOISE < self.sqr + self.var < _MOST_NOISE

    def efficiency(self, batch: int, reference: int) -> float:
        """Return the progress of a sample in steps of `batch`, relative to one in steps of `reference`."""
        return efficiency(batch, reference, sqr=self.sqr, var=self.var)

    @property
    def basis(self) -> str:
        """The noise scale as a clause for users."""
        if self == UNSCALED:
            return "the learning rate does not follow the batch"
        text = "too large to be measured" if math.isinf(self.scale) else f"{self.scale:,.0f} samples"
        return f"the noise scale is {text}"

    @property
    def scale(self) -> float:
        """Gradient noise scale phi in samples, infinite without a signal."""
        return self.var / self.sqr if self.sqr > 0.0 else math.inf


_MOST_SCALE = 1e12
"""Noise scale in samples that stands for an infinite one in a mean: it is beyond any batch."""
UNSCALED = Noise(sqr=1.0, var=0.0)
"""Noise of a job whose learning rate does not follow the batch: a larger batch makes no more progress in a step."""


@dataclass(frozen=True, slots=True)
class BatchSpeed:
    """Samples per second with one batch, measured over `steps` steps."""

    samples_per_s: float
    steps: int


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """Batch to use from now on, with the reason as the end of a sentence."""

    global_batch: int
    reason: str


def choose_batch(job: Job, snapshot: Snapshot, effect: float = 1.0) -> BatchChoice | None:
    """Return the global batch that the job should use from now on, or None where the service does not choose it.

    `effect` is the measured exponent of the efficiency (`perf.efficiency.batch_effect`).
    """
    present, most, reference = (
        job.progress.global_batch,
        job.progress.max_global_batch,
        job.spec.batch.global_,
    )
    running = job.adapts and job.live and job.state is JobState.RUNNING and job.switch is None
    if not running or present is None or most is None or reference is None:
        return None
    if snapshot.keeps_batch:
        return BatchChoice(min(reference, most), "the policy keeps the batch of the job file")
    measurements = snapshot.measurements.get(job.id, ())
    now = [one for one in measurements if (one.generation, one.global_batch) == (job.generation, present)]
    if not now:
        return BatchChoice(present, "not measured yet")
    (here,) = now
    return next_batch(
        present,
        reference=min(reference, most),
        most=min(most, job.spec.batch.max_global or reference),
        fresh_steps=here.steps,
        speeds=speeds_of(measurements, device_kind=here.device_kind, slots=here.slots, nodes=here.nodes),
        noise=noise_of(here) if job.scales_rate else UNSCALED,
        effect=effect,
    )


def planned_batch(job: Job, snapshot: Snapshot, planned: int, slots: int) -> int:
    """Return the global batch with which a job begins on `slots` slots, for which the goodput table plans `planned`.

    It is at most twice the largest batch that the job has tried. A job that starts counts the batches of earlier jobs
    of its class with the same batch in their job file, too. A batch that the job has tried for less than `ENOUGH_STEPS`
    steps is not replaced by a smaller one: so few steps do not show that it is worse.
    """
    reference = job.spec.batch.global_ or 1
    known = [one for one in snapshot.measurements.get(job.id, ()) if one.believable]
    present = job.progress.global_batch or 0
    if sum(one.steps for one in known if one.global_batch == present) < ENOUGH_STEPS:
        planned = max(planned, present)
    if job.state is JobState.PENDING:
        alike = snapshot.class_measurements.get(class_of(job.spec), ())
        known += [one for one in alike if one.believable and one.reference_batch == reference]
    tried = max([reference, *(one.global_batch for one in known)])
    return max(min(planned, EXPLORE_FACTOR * tried), reference, slots)


def log_noise_scale(sqr: float | None, var: float | None) -> float | None:
    """Return the natural logarithm of a noise scale in samples, within bounds; None where the terms define none."""
    if sqr is None or var is None or not (noise := Noise(sqr, var)).known:
        return None
    return bounded_log(noise.scale)


def bounded_log(scale: float) -> float:
    """Return the natural logarithm of a noise scale in samples, for a mean: 0 and infinity are replaced by bounds."""
    return math.log(min(max(scale, 1 / _MOST_SCALE), _MOST_SCALE))


def noise_of(measurement: Measurement) -> Noise | None:
    """Return the gradient noise of the measurement, or None without one."""
    if measurement.gradient_sqr is None or measurement.gradient_var is None:
        return None
    return Noise(measurement.gradient_sqr, measurement.gradient_var)


def speeds_of(
    measurements: Sequence[Measurement], *, device_kind: str, slots: int, nodes: int
) -> dict[int, BatchSpeed]:
    """Return the measured speeds on exactly this number of slots and nodes, by batch."""
    speeds: dict[int, BatchSpeed] = {}
    for one in measurements:
        same = (one.device_kind, one.slots, one.nodes) == (device_kind, slots, nodes)
        if not same or not one.believable or one.global_batch < 1:
            continue
        before = speeds.get(one.global_batch, BatchSpeed(0.0, 0))
        steps = before.steps + one.steps
        # Steps have the same batch, so the mean of their times is the mean of the inverse speeds.
        time_s = before.steps / before.samples_per_s if before.steps else 0.0
        speeds[one.global_batch] = BatchSpeed(steps / (time_s + one.steps / one.samples_per_s), steps)
    return speeds


def next_batch(
    present: int,
    *,
    reference: int,
    most: int,
    fresh_steps: int,
    speeds: Mapping[int, BatchSpeed],
    noise: Noise | None,
    effect: float = 1.0,
) -> BatchChoice:
    """Return the best global batch from `reference` (the job's own) to `most`, or `present` if no other is better.

    `fresh_steps` counts the steps since the batch or the members last changed. `speeds` covers the whole life
    of the job at its present size. `effect` is the exponent of the efficiency.
    """
    if fresh_steps < ENOUGH_STEPS:
        return BatchChoice(present, f"measured for {fresh_steps} of {ENOUGH_STEPS} steps")
    if noise is None or not noise.known:
        return BatchChoice(present, "the gradient noise is unknown")
    goodput = {
        batch: speed.samples_per_s * noise.efficiency(batch, reference) ** effect
        for batch, speed in speeds.items()
        if speed.steps >= ENOUGH_STEPS and reference <= batch <= most
    }
    if present not in goodput:
        return _into_bounds(present, reference, most)
    best = _best(goodput)
    gain = goodput[best] / goodput[present]
    on_trial = speeds[present].steps < TRIAL_STEPS and best < present
    if best != present and on_trial:
        return BatchChoice(
            best, f"{present:,} was tried and is {_gain(1 / gain)}, but must be {MIN_GAIN - 1:.0%} better"
        )
    if best != present and gain >= MIN_GAIN:
        return BatchChoice(best, f"{_gain(gain)}, as measured; {noise.basis}")
    return _explored(present, reference, most, goodput, noise, effect)


def _into_bounds(present: int, reference: int, most: int) -> BatchChoice:
    inside = min(max(present, reference), most)
    why = "not measured at this size" if inside == present else "back within the bounds"
    return BatchChoice(inside, why)


def _best(goodput: Mapping[int, float]) -> int:
    """Return the best batch. A larger one must gain `MIN_GAIN`, since a smaller one is closer to the user's own."""
    batches = sorted(goodput)
    best = batches[0]
    for batch in batches[1:]:
        if goodput[batch] >= MIN_GAIN * goodput[best]:
            best = batch
    return best


def _explored(
    present: int, reference: int, most: int, goodput: Mapping[int, float], noise: Noise, effect: float
) -> BatchChoice:
    """Return a neighbouring batch without measurements if its upper bound is worth a trial, else the present one."""
    larger = min(EXPLORE_FACTOR * present, most)
    smaller = max(present // EXPLORE_FACTOR, reference)
    # Samples per second grow at most in proportion to the batch, and do not grow when the batch shrinks.
    upper_bounds = {
        larger: larger / present * noise.efficiency(larger, present) ** effect,
        smaller: noise.efficiency(smaller, present) ** effect,
    }
    new = {batch: gain for batch, gain in upper_bounds.items() if batch not in goodput and gain >= MIN_GAIN}
    if not new:
        return BatchChoice(present, "no other batch promises more goodput")
    batch = max(new, key=new.__getitem__)
    return BatchChoice(batch, f"tried, since {noise.basis}")


def _gain(factor: float) -> str:
    return f"{abs(factor - 1):.0%} {'better' if factor >= 1 else 'worse'}"
