"""What a replay comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.replay.engine import Record, Run
from benchmarks.replay.worlds import World

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over jobs unless it says otherwise. Completion times are from submit to end; jobs that never ended count as if
    they had ended with the replay.

    `makespan_h` is from the first submit to the last end. `worst_fairness` is the largest completion time over that on a
    fixed, equal share of the cluster (finish-time fairness, Themis), `unfair_share` how many are above 1. `changes` of
    slots after the first start. `decision_*` are real milliseconds.
    """

    avg_jct_h: float
    median_jct_h: float
    p90_jct_h: float
    p99_jct_h: float
    makespan_h: float
    queue_h: float
    gpu_h: float
    worst_fairness: float
    unfair_share: float
    changes: float
    unfinished: int
    rounds: int
    decision_p50_ms: float
    decision_p95_ms: float


def summarise(world: World, record: Record) -> Summary:
    """The figures of one replay, which had at least one job."""
    runs = record.runs
    ends_s = np.array([min(run.finished_s, record.end_s) for run in runs])
    submits_s = np.array([run.submit_s for run in runs])
    jct_h = (ends_s - submits_s) / HOUR_S
    starts_s = np.array([min(run.started_s, record.end_s) for run in runs])
    fairness = np.array([_fairness(world, record, run) for run in runs])
    decision_ms = 1e3 * np.array(record.decisions_s)
    return Summary(
        avg_jct_h=float(jct_h.mean()),
        median_jct_h=float(np.median(jct_h)),
        p90_jct_h=float(np.quantile(jct_h, 0.9)),
        p99_jct_h=float(np.quantile(jct_h, 0.99)),
        makespan_h=float(ends_s.max() - submits_s.min()) / HOUR_S,
        queue_h=float((starts_s - submits_s).mean()) / HOUR_S,
        gpu_h=float(np.mean([run.served_slot_s for run in runs])) / HOUR_S,
        worst_fairness=float(fairness.max()),
        unfair_share=float((fairness > 1.0).mean()),
        changes=float(np.mean([run.changes for run in runs])),
        unfinished=sum(1 for run in runs if math.isinf(run.finished_s)),
        rounds=len(decision_ms),
        decision_p50_ms=float(np.quantile(decision_ms, 0.5)),
        decision_p95_ms=float(np.quantile(decision_ms, 0.95)),
    )


def _fairness(world: World, record: Record, run: Run) -> float:
    """Completion time over that on a fixed share: the cluster's slots by the mean number of jobs while it was there, all
    of one kind; the mean over kinds, weighted by their slots.
    """
    configurations = world.configurations
    load = [count for at_s, count in record.load if run.submit_s <= at_s <= run.finished_s]
    of_kind = np.array([row.capacity for row in world.rows[: len(configurations.kinds)]])
    share = float(of_kind.sum()) / float(np.mean(load or [1]))
    alone_s = [_alone_s(world, run, kind, share) for kind in range(len(of_kind))]
    return (min(run.finished_s, record.end_s) - run.submit_s) / float(np.average(alone_s, weights=of_kind))


def _alone_s(world: World, run: Run, kind: int, share: float) -> float:
    """Seconds on the best configuration of a kind within the share, or on a part of the smallest one's time."""
    configurations, application = world.configurations, run.application
    of_kind = configurations.kind == kind
    smallest = int(configurations.slots[of_kind].min())
    fits = np.flatnonzero(of_kind & (configurations.slots <= max(share, smallest)))
    work = np.diff(application.boundaries)
    train_s = min(float((work / application.goodput[:, column]).sum()) for column in fits)
    return application.restart_s + train_s / min(share / smallest, 1.0)
