"""The global batch of a job that may change it: from measured speed and gradient noise. Pure.

A larger batch is faster in samples and makes less progress with each. What counts is their product (Pollux, OSDI'21,
section 3): goodput(M) = throughput(M) * (phi + m0) / (phi + M), where phi is the gradient noise scale in samples
and m0 the job's own batch. Throughput is only ever what was measured at the size that the job has now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.contract.jobs import JobState
from service.domain.cluster import Measurement, Snapshot
from service.domain.jobs import Job

ENOUGH_STEPS = 100
"""Steps of a batch before its speed counts, and before the noise measured in them does: the library measures that in
every eighth."""
TRIAL_STEPS = 2 * ENOUGH_STEPS
"""Until a batch has so many, it is on trial: it has to be better than the best smaller one, not just as good."""
MIN_GAIN = 1.05
"""Another batch must promise at least this factor of goodput (as Pollux has it), else jobs go to and fro."""
EXPLORE_FACTOR = 2
"""A batch that was never measured is at most so many times the present one."""
_LOUDEST = 1e200
"""No gradient is so long; what scripts report must not make the arithmetic overflow."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Squared norm of the true gradient, and trace of the covariance of one sample's."""

    sqr: float
    var: float

    @property
    def known(self) -> bool:
        """Whether it says anything."""
        return self.sqr >= 0.0 and self.var >= 0.0 and 1 / _LOUDEST < self.sqr + self.var < _LOUDEST

    def efficiency(self, batch: int, reference: int) -> float:
        """The progress of a sample in steps of `batch`, against one in steps of `reference`."""
        var, own, other = self.var / batch, self.sqr * (reference / batch), self.sqr
        return (var + own) / (var + other) if var + other > 0.0 else 1.0

    @property
    def scale(self) -> float:
        """phi, in samples: infinite where no signal is seen."""
        return self.var / self.sqr if self.sqr > 0.0 else math.inf


@dataclass(frozen=True, slots=True)
class Speed:
    """Samples per second with one batch, over `steps` steps."""

    samples_per_s: float
    steps: int


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The batch to go on with, and why, as the end of a sentence."""

    global_batch: int
    reason: str


def choose_batch(job: Job, snapshot: Snapshot) -> BatchChoice | None:
    """What a step of the job is to take from now on; None where the service has no say in it."""
    present, most, reference = (
        job.progress.global_batch,
        job.progress.max_global_batch,
        job.spec.batch.global_,
    )
    running = job.adapts and job.live and job.state is JobState.RUNNING and job.switch is None
    if not running or present is None or most is None or reference is None:
        return None
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
        noise=noise_of(here),
    )


def noise_of(measurement: Measurement) -> Noise | None:
    """What the measurement says of the gradient noise."""
    if measurement.gradient_sqr is None or measurement.gradient_var is None:
        return None
    return Noise(measurement.gradient_sqr, measurement.gradient_var)


def speeds_of(
    measurements: Sequence[Measurement], *, device_kind: str, slots: int, nodes: int
) -> dict[int, Speed]:
    """What was measured on just so many slots, by batch."""
    speeds: dict[int, Speed] = {}
    for one in measurements:
        same = (one.device_kind, one.slots, one.nodes) == (device_kind, slots, nodes)
        if not same or not one.believable or one.global_batch < 1:
            continue
        before = speeds.get(one.global_batch, Speed(0.0, 0))
        steps = before.steps + one.steps
        # Steps of one batch: the mean of times, so of inverses.
        time_s = before.steps / before.samples_per_s if before.steps else 0.0
        speeds[one.global_batch] = Speed(steps / (time_s + one.steps / one.samples_per_s), steps)
    return speeds


def next_batch(
    present: int,
    *,
    reference: int,
    most: int,
    fresh_steps: int,
    speeds: Mapping[int, Speed],
    noise: Noise | None,
) -> BatchChoice:
    """The global batch to go on with, from `reference` (the job's own) to `most`; `present` where nothing is better.

    `fresh_steps` were measured since batch or members last changed, `speeds` in the whole life of the job at its
    present size.
    """
    if fresh_steps < ENOUGH_STEPS:
        return BatchChoice(present, f"measured for {fresh_steps} of {ENOUGH_STEPS} steps")
    if noise is None or not noise.known:
        return BatchChoice(present, "the gradient noise is not known")
    goodput = {
        batch: speed.samples_per_s * noise.efficiency(batch, reference)
        for batch, speed in speeds.items()
        if speed.steps >= ENOUGH_STEPS and reference <= batch <= most
    }
    if present not in goodput:
        return _into_bounds(present, reference, most)
    best = _best(goodput)
    gain = goodput[best] / goodput[present]
    on_trial = speeds[present].steps < TRIAL_STEPS and best < present
    if best != present and on_trial:
        return BatchChoice(best, f"{present:,} was tried and is {_gain(1 / gain)}, less than it must be")
    if best != present and gain >= MIN_GAIN:
        return BatchChoice(best, f"{_gain(gain)}, as measured, at a noise scale of {_samples(noise)}")
    return _explored(present, reference, most, goodput, noise)


def _into_bounds(present: int, reference: int, most: int) -> BatchChoice:
    inside = min(max(present, reference), most)
    why = "not measured at this size" if inside == present else "back within the bounds"
    return BatchChoice(inside, why)


def _best(goodput: Mapping[int, float]) -> int:
    """The best batch, where a larger one must earn what it costs: a smaller one is closer to what the user wrote."""
    batches = sorted(goodput)
    best = batches[0]
    for batch in batches[1:]:
        if goodput[batch] >= MIN_GAIN * goodput[best]:
            best = batch
    return best


def _explored(
    present: int, reference: int, most: int, goodput: Mapping[int, float], noise: Noise
) -> BatchChoice:
    """A neighbour that was never measured, if at the very best it could be worth it."""
    larger = min(EXPLORE_FACTOR * present, most)
    smaller = max(present // EXPLORE_FACTOR, reference)
    # Samples per second grow at most like the batch, and do not grow when it gets smaller.
    hopes = {
        larger: larger / present * noise.efficiency(larger, present),
        smaller: noise.efficiency(smaller, present),
    }
    new = {batch: hope for batch, hope in hopes.items() if batch not in goodput and hope >= MIN_GAIN}
    if not new:
        return BatchChoice(present, "nothing else promises more")
    batch = max(new, key=new.__getitem__)
    return BatchChoice(batch, f"tried, since the noise scale is {_samples(noise)}")


def _gain(factor: float) -> str:
    return f"{abs(factor - 1):.0%} {'better' if factor >= 1 else 'worse'}"


def _samples(noise: Noise) -> str:
    return "too large to be measured" if math.isinf(noise.scale) else f"{noise.scale:,.0f} samples"
