"""Results of a replay: rows of jobs, and summary figures."""

from __future__ import annotations

import numpy as np

from service.domain.shared.arrays import FloatArray, NumberArray
from service.simulation.model.world import JobRows, Replay, RoundRows, World
from service.simulation.replay.jobs import ReplayJobs, Tables

HOUR_S = 3600.0


def job_rows(world: World, tables: Tables, jobs: ReplayJobs, rounds: RoundRows, end_s: float) -> JobRows:
    """Return the outcome of each job at the end of the replay."""
    return JobRows(
        id=tuple(one.id for one in world.arrivals),
        application=tuple(world.applications[one.application].name for one in world.arrivals),
        submit_s=jobs.submit_s,
        start_s=jobs.start_s,
        end_s=jobs.end_s,
        requested_slots=np.array([one.requested_slots for one in world.arrivals], dtype=np.int64),
        served_slot_s=jobs.served_slot_s,
        usd=jobs.usd,
        changes=jobs.changes,
        restarts=jobs.restarts,
        lost_s=jobs.lost_s,
        alone_s=_alone_s(world, tables, jobs, rounds, end_s),
    )


def summary(replay: Replay) -> dict[str, float]:
    """Return the figures of a replay as numbers that JSON can hold; a mean over no job is 0.

    Completion times are from submission to end. A job that never ended counts as if it had ended with the
    replay.

    - `jct`: completion time.
    - `queue_h`: time from submission to the first slots.
    - `makespan_h`: time from the first submission to the last end.
    - `fairness`: completion time over that on a fixed, equal share of the cluster (finish-time fairness,
      Themis, NSDI'20). `unfair_share` is the share of jobs above 1.
    - `utilisation`: slot-seconds held over slot-seconds present in rounds.
    - `lost_share`: share of the time with slots that starts, pauses and repeated work took.
    - `decision_*_ms`: real time. All other times are virtual.
    """
    jobs, rounds = replay.jobs, replay.rounds
    ended = np.isfinite(jobs.end_s)
    ends_s, starts_s = np.minimum(jobs.end_s, replay.end_s), np.minimum(jobs.start_s, replay.end_s)
    jct_h = (ends_s - jobs.submit_s) / HOUR_S
    fairness = (ends_s - jobs.submit_s) / np.maximum(jobs.alone_s, 1e-9)
    held_s = float((replay.segments.to_s - replay.segments.from_s).sum())
    there_slot_s = float(rounds.slots_present @ _lengths_s(rounds, replay.end_s))
    decision_ms = 1e3 * rounds.decision_s
    return {
        "jobs": len(ends_s),
        "unfinished": int((~ended).sum()),
        "rejected": len(replay.world.rejected),
        "avg_jct_h": _mean(jct_h),
        "median_jct_h": _quantile(jct_h, 0.5),
        "p90_jct_h": _quantile(jct_h, 0.9),
        "p99_jct_h": _quantile(jct_h, 0.99),
        "makespan_h": (float(ends_s.max()) - float(jobs.submit_s.min())) / HOUR_S if len(ends_s) else 0.0,
        "queue_h": _mean(starts_s - jobs.submit_s) / HOUR_S,
        "worst_fairness": float(fairness.max(initial=0.0)),
        "unfair_share": _mean(fairness > 1.0),
        "gpu_h": float(jobs.served_slot_s.sum()) / HOUR_S,
        "usd": float(jobs.usd.sum()),
        "utilisation": float(jobs.served_slot_s.sum()) / there_slot_s if there_slot_s > 0 else 0.0,
        "changes": _mean(jobs.changes),
        "restarts": _mean(jobs.restarts),
        "lost_share": float(jobs.lost_s.sum()) / held_s if held_s > 0 else 0.0,
        "rounds": len(decision_ms),
        "decision_p50_ms": _quantile(decision_ms, 0.5),
        "decision_p95_ms": _quantile(decision_ms, 0.95),
        "gap_max": float(np.nan_to_num(rounds.gap).max(initial=0.0)),
    }


def _lengths_s(rounds: RoundRows, end_s: float) -> FloatArray:
    """Return the seconds from each round to the next (R,)."""
    return np.maximum(np.diff(rounds.time_s, append=end_s), 0.0)


def _mean(values: NumberArray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _quantile(values: FloatArray, part: float) -> float:
    return float(np.quantile(values, part)) if len(values) else 0.0


def _alone_s(world: World, tables: Tables, jobs: ReplayJobs, rounds: RoundRows, end_s: float) -> FloatArray:
    """Return the completion time of each job on a fixed share of the cluster (J,).

    The share is the cluster's slots divided by the mean number of jobs while the job was present, all of one
    kind. The result is the mean over the kinds it can run on, weighted by their slots. The time on a kind is
    that of its best configuration within the share. If the share is below the job's smallest size, the time
    at that size is divided by the part of it that the share covers.
    """
    configurations = world.configurations
    present = np.concatenate([[0.0], np.cumsum(rounds.queued + rounds.running)])
    first = np.searchsorted(rounds.time_s, jobs.submit_s, side="left")
    last = np.searchsorted(rounds.time_s, np.minimum(jobs.end_s, end_s), side="right")
    rounds_seen = np.maximum(last - first, 0)
    load = np.where(
        rounds_seen > 0, (present[last] - present[np.minimum(first, last)]) / np.maximum(rounds_seen, 1), 1.0
    )
    share = sum(kind.slots for kind in world.kinds) / np.maximum(load, 1.0)
    total_s, weight = np.zeros(len(share)), np.zeros(len(share))
    for index, kind in enumerate(world.kinds):
        columns = np.flatnonzero((configurations.kind == index) & ~configurations.mixed)
        slots = configurations.slots[columns]
        train_s = jobs.stretch[:, None] * tables.clock_s[jobs.application, -1][:, columns]
        fewest = np.where(np.isfinite(train_s), slots, np.inf).min(axis=1)
        fits = slots <= np.maximum(share, fewest)[:, None]
        best_s = np.where(fits, train_s, np.inf).min(axis=1)
        runs = np.isfinite(best_s)
        part = np.minimum(share / np.where(runs, fewest, 1.0), 1.0)
        total_s += np.where(runs, kind.slots * (jobs.restart_s + np.where(runs, best_s, 0.0) / part), 0.0)
        weight += runs * kind.slots
    return np.where(weight > 0, total_s / np.maximum(weight, 1), np.inf)
