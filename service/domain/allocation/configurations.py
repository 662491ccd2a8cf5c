"""The table of configurations of one job: what it could be given now, and what each is worth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headway.contract.agents import NodeState
from headway.contract.jobs import JobState, SizeOption
from headway.contract.spec import Resize
from service.domain.allocation.problem import Configuration
from service.domain.cluster import Measurement, SlotKey, Snapshot
from service.domain.jobs import Job, size_of
from service.domain.perf.batch import in_goodput
from service.domain.perf.goodput import SizeGoodput, goodput_table, worth_exploring

RESTART_S = 3.0
"""Training time that a change by a restart costs: stop, checkpoint, relaunch, load."""
LIVE_CHANGE_S = 0.5
"""The same of a change in place that was never measured."""
HORIZON_S = 120.0
"""How long a new allocation is counted on when its restart is weighed against its speed."""
MIN_GAIN = 1.05
"""A running job grows, or moves by its own choice, only for at least this factor of goodput."""
MIN_RUNTIME_S = 10.0
"""A job that was just (re)started is not grown; it may be shrunk to make room. Where members change in place
this does not hold: what was lost is to come back at once.
"""
SILENT_S = 20.0
"""A job that runs this long without a measurement will never send one: its script is plain."""
IDLE_PENALTY = 1.5
"""What taking everything from a running job costs, in units of its weight."""
AGING_S = 600.0
"""Over this time a waiting job's weight grows by half: ahead of newer ones, but not so far that it takes
everything from a running job of its own priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """What a round knows of one job. `keepable` are slots it holds and may go on using."""

    job: Job
    current_size: int
    current_kind: str | None
    keepable: tuple[SlotKey, ...]
    rows: tuple[Configuration, ...]
    options: tuple[SizeOption, ...]
    idle_utility: float


def is_waiting(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job holds nothing and a round may start it."""
    due = job.retry_at is None or job.retry_at <= snapshot.now
    may_start = job.state in {JobState.PENDING, JobState.RECOVERING} and not job.pause_requested
    return may_start and due and not snapshot.slots_held_by(job.id)


def is_movable(job: Job, snapshot: Snapshot) -> bool:
    """Whether the job runs, on all of its slots, and a round may change what it has.

    A generation that has left some of them is coming to its end: it must not be taken for a smaller one.
    """
    whole = len(snapshot.slots_held_by(job.id)) == size_of(job.allocation)
    return job.state is JobState.RUNNING and whole and job.spec.elastic.resize is not Resize.NEVER


def weight_of(job: Job, snapshot: Snapshot) -> float:
    """How much one unit of the job's utility counts: by priority (50 is 1, 75 is 2) and waiting time."""
    weight = math.pow(2.0, (job.spec.priority - 50) / 25)
    if job.state is JobState.PENDING:
        waited_s = max(0.0, (snapshot.now - job.state_since).total_seconds())
        weight *= 1.0 + 0.5 * min(waited_s / AGING_S, 1.0)
    return weight


def build_table(job: Job, snapshot: Snapshot) -> JobTable:
    """Every configuration that a round may choose for `job`."""
    held = snapshot.slots_held_by(job.id)
    # A slot that its node no longer reports (a GPU that is gone) has no kind, and cannot be kept.
    current_kind = next((kind for kind in map(snapshot.kind_of, held) if kind), None)
    keepable = tuple(
        key
        for key in held
        if snapshot.nodes[key.node_id].state in {NodeState.READY, NodeState.CORDONED}
        and snapshot.kind_of(key) == current_kind
    )
    private = Counter(
        snapshot.kind_of(key) for key in keepable if snapshot.nodes[key.node_id].state is NodeState.CORDONED
    )
    weight = weight_of(job, snapshot)
    left_over = _is_left_over(job, len(held)) and not backs_off(job, snapshot)
    measured: Sequence[Measurement] = snapshot.measurements.get(job.id, ())
    if job.adapts:
        measured = in_goodput(measured, job.spec.batch.global_)
    rows: list[Configuration] = []
    options: list[SizeOption] = []
    for kind in _acceptable_kinds(job, snapshot):
        sizes = _sizes_to_consider(job, snapshot, kind, len(held) if kind == current_kind else 0)
        table = goodput_table(measured, kind, sizes)
        speedups = {entry.slots: entry.speedup for entry in table}
        for entry in table:
            is_current = kind == current_kind and entry.slots == len(held)
            stays = is_current and len(keepable) == len(held)
            note = "" if stays or not held else _objection(job, snapshot, entry, speedups.get(len(held)))
            cost = 0.0 if stays or not held else change_s(job) / HORIZON_S
            speedup = _trusted(entry.speedup, speedups.get(len(held))) * (1 - cost)
            utility = weight * math.log1p(speedup)
            options.append(_option(kind, entry, utility, "current" if stays else note))
            forced = len(keepable) < len(held) or entry.slots == job.pinned_size or left_over
            if is_current and left_over:
                continue
            if not note or forced:
                bonus = IDLE_PENALTY * weight if entry.slots == job.pinned_size else 0.0
                demand = max(0, entry.slots - private[kind])
                rows.append(
                    Configuration(device_kind=kind, slots=entry.slots, demand=demand, utility=utility + bonus)
                )
    return JobTable(
        job=job,
        current_size=len(held),
        current_kind=current_kind,
        keepable=keepable,
        rows=tuple(rows),
        options=tuple(options),
        idle_utility=-IDLE_PENALTY * weight if held else 0.0,
    )


def _trusted(speedup: float, current: float | None) -> float:
    """The speedup to count with: one that is hardly above the present one may be noise, and a job would go to and fro."""
    return speedup if current is None or speedup >= MIN_GAIN * current else min(speedup, current)


def change_s(job: Job) -> float:
    """Seconds of training that a change of the job's slots costs."""
    if not job.live:
        return RESTART_S
    measured_s = job.progress.pause_s
    return LIVE_CHANGE_S if measured_s is None else min(measured_s, RESTART_S)


def backs_off(job: Job, snapshot: Snapshot) -> bool:
    """Whether no newcomers are to be started for the job yet, since the last ones did not come up."""
    return job.grow_after is not None and snapshot.now < job.grow_after


def _is_left_over(job: Job, size: int) -> bool:
    """Whether a loss has left the job a size that its spec does not allow: it does not stay there."""
    return size > 0 and job.live and size not in job.spec.elastic.allowed_sizes()


def _acceptable_kinds(job: Job, snapshot: Snapshot) -> list[str]:
    present = {kind for node in snapshot.nodes.values() for kind in node.slots.values()}
    wanted = job.spec.resources.devices
    return [kind for kind in wanted if kind in present] if wanted else sorted(present)


def _sizes_to_consider(job: Job, snapshot: Snapshot, kind: str, current: int) -> tuple[int, ...]:
    """Allowed sizes worth a look now; a running job may always keep the size that it has."""
    measurements = snapshot.measurements.get(job.id, ())
    ran_s = (snapshot.now - job.state_since).total_seconds()
    silent = job.state is JobState.RUNNING and not measurements and ran_s >= SILENT_S
    rigid = job.spec.elastic.resize is Resize.NEVER
    if _is_left_over(job, len(snapshot.slots_held_by(job.id))):
        wanted = () if job.pinned_size is None else (job.pinned_size,)
        allowed = job.spec.elastic.allowed_sizes()
        sizes = tuple({*worth_exploring(measurements, kind, allowed), *wanted})
    elif job.pinned_size is not None or silent or rigid:
        sizes = job.sizes
    else:
        sizes = worth_exploring(measurements, kind, job.sizes)
    return tuple(sorted({*sizes, current} - {0})) if current else tuple(sizes)


def _objection(job: Job, snapshot: Snapshot, entry: SizeGoodput, current_speedup: float | None) -> str:
    """Why a running job should not change to this size by its own choice; empty when it may."""
    size = len(snapshot.slots_held_by(job.id))
    if entry.slots > size and job.grow_after is not None and backs_off(job, snapshot):
        return f"new ranks did not come up; tried again from {job.grow_after:%H:%M:%S} UTC on"
    if entry.slots == job.pinned_size or current_speedup is None:
        return ""
    ran_s = (snapshot.now - job.state_since).total_seconds()
    if entry.slots > size and ran_s < MIN_RUNTIME_S and not job.live:
        return f"started {ran_s:.0f} s ago; a change waits until {MIN_RUNTIME_S:.0f} s"
    if entry.slots >= size and entry.speedup < MIN_GAIN * current_speedup:
        return (
            f"less than {MIN_GAIN - 1:.0%} faster than now: not worth a {'pause' if job.live else 'restart'}"
        )
    return ""


def _option(kind: str, entry: SizeGoodput, utility: float, note: str) -> SizeOption:
    return SizeOption(
        device_kind=kind,
        slots=entry.slots,
        goodput_samples_per_s=entry.goodput_samples_per_s,
        speedup=entry.speedup,
        measured=entry.measured,
        utility=utility,
        note=note,
    )
