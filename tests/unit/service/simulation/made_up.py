"""Synthetic replays for tests of reports."""

from __future__ import annotations

import numpy as np

from service.domain.policies.framework.policy import Configurations
from service.simulation.model.world import (
    Application,
    Arrival,
    ClusterRules,
    JobRows,
    Kind,
    Replay,
    RoundRows,
    Segments,
    World,
)
from service.simulation.report.results import ReplayResult

SIZES = np.array([1, 2, 4, 8])


def result(
    policy: str = "goodput",
    *,
    jobs: int = 20,
    seed: int = 0,
    slow: float = 1.0,
    unfinished: int = 0,
    usd_per_slot_h: float = 1.0,
    rejected: tuple[tuple[str, str], ...] = (),
    job_name: str = "job",
) -> ReplayResult:
    """Return a replay of jobs that each hold two sizes, one after the other. `slow` is the factor of their durations."""
    world = _world(jobs, seed, usd_per_slot_h, rejected, job_name)
    replay = _replay(world, policy, slow, unfinished)
    return ReplayResult(replay=replay, figures=_figures(replay))


def _world(
    jobs: int, seed: int, usd_per_slot_h: float, rejected: tuple[tuple[str, str], ...], job_name: str
) -> World:
    configurations = Configurations(
        kinds=("t4",),
        kind=np.zeros(4, dtype=np.int64),
        slots=SIZES,
        nodes=np.array([1, 1, 1, 2]),
        usd_per_h=usd_per_slot_h * SIZES,
    )
    application = Application(
        name="cifar10", boundaries=np.array([0.0, 1000.0]), goodput=np.ones((1, 4)), restart_s=30.0
    )
    rng = np.random.default_rng(7)
    submits_s = np.cumsum(rng.exponential(180.0, jobs))
    sizes = rng.choice(SIZES, jobs)
    return World(
        kinds=(Kind(name="t4", node_slots=(4,) * 4, usd_per_slot_h=usd_per_slot_h),),
        configurations=configurations,
        applications=(application,),
        arrivals=tuple(
            Arrival(id=f"{job_name}-{row}", submit_s=float(at_s), application=0, requested_slots=int(size))
            for row, (at_s, size) in enumerate(zip(submits_s, sizes, strict=True))
        ),
        rejected=rejected,
        rules=ClusterRules(),
        seed=seed,
    )


def _replay(world: World, policy: str, slow: float, unfinished: int) -> Replay:
    rng = np.random.default_rng(world.seed)
    count = len(world.arrivals)
    submit_s = np.array([one.submit_s for one in world.arrivals])
    start_s = submit_s + slow * rng.exponential(300.0, count)
    change_s = start_s + slow * rng.exponential(1200.0, count)
    end_s = change_s + slow * rng.exponential(2400.0, count)
    stop_s = float(end_s.max())
    columns = rng.integers(0, 4, (2, count))
    held = [(start_s, change_s, columns[0]), (change_s, end_s, columns[1])]
    served = sum(((until - since) * SIZES[column] for since, until, column in held), np.zeros(count))
    end_s[count - unfinished :] = np.inf
    times = np.arange(0.0, stop_s, 60.0)
    running = np.searchsorted(np.sort(start_s), times, side="right") - np.searchsorted(
        np.sort(end_s), times, side="right"
    )
    queued = np.searchsorted(submit_s, times, side="right") - np.searchsorted(
        np.sort(start_s), times, side="right"
    )
    return Replay(
        world=world,
        policy=policy,
        end_s=stop_s,
        jobs=JobRows(
            id=tuple(one.id for one in world.arrivals),
            application=("cifar10",) * count,
            submit_s=submit_s,
            start_s=start_s,
            end_s=end_s,
            requested_slots=np.array([one.requested_slots for one in world.arrivals]),
            served_slot_s=served,
            usd=served / 3600 * world.kinds[0].usd_per_slot_h,
            changes=np.ones(count, dtype=np.int64),
            restarts=np.ones(count, dtype=np.int64),
            lost_s=np.full(count, 60.0),
            alone_s=rng.exponential(3600.0, count),
        ),
        rounds=RoundRows(
            time_s=times,
            queued=queued,
            running=running,
            slots_used=2 * running,
            slots_present=np.full(len(times), 16),
            usd_per_h=2.0 * running,
            goodput=1.7 * running,
            decision_s=np.full(len(times), 0.002),
            gap=np.zeros(len(times)),
        ),
        segments=Segments(
            job=np.concatenate([np.arange(count), np.arange(count)]),
            column=np.concatenate([columns[0], columns[1]]),
            from_s=np.concatenate([start_s, change_s]),
            to_s=np.concatenate([change_s, np.minimum(end_s, stop_s)]),
        ),
    )


def _figures(replay: Replay) -> dict[str, float]:
    jobs = replay.jobs
    taken_h = (np.minimum(jobs.end_s, replay.end_s) - jobs.submit_s) / 3600
    fairness = 3600 * taken_h / jobs.alone_s
    return {
        "avg_jct_h": float(taken_h.mean()),
        "median_jct_h": float(np.median(taken_h)),
        "p90_jct_h": float(np.quantile(taken_h, 0.9)),
        "p99_jct_h": float(np.quantile(taken_h, 0.99)),
        "makespan_h": replay.end_s / 3600,
        "queue_h": float((jobs.start_s - jobs.submit_s).mean()) / 3600,
        "worst_fairness": float(fairness.max()),
        "unfair_share": float((fairness > 1).mean()),
        "gpu_h": float(jobs.served_slot_s.sum()) / 3600,
        "usd": float(jobs.usd.sum()),
        "utilisation": 0.5,
        "changes": 1.0,
        "restarts": 1.0,
        "lost_share": 0.02,
        "decision_p95_ms": 2.0,
    }
