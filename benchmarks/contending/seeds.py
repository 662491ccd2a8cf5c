"""Random small clusters in virtual time: priorities, minimums of several slots, and restarts that cost seconds to minutes.

A seed names one cluster for ever, so that a change of the rules is judged on the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.contending.measures import SUMMED, measures
from benchmarks.contending.streams import Planned
from tests.histories.service.domain.contention.virtual_cluster import VirtualCluster

_START_S = (5.0, 60.0, 300.0)
"""Seconds of a start; a stop takes a fifth of it."""
_PATIENCE = 4.0
"""Unfinished jobs are cancelled after this multiple of the time in which the slots could do all work, one slot a job."""
_SHOWN = (
    "early_vacates",
    "self_evictions",
    "order_violations",
    "unfinished",
    "vacates",
    "changes",
    "job_hours",
    "changes_per_job_hour",
    "forced_per_job_hour",
    "completion_s",
)


@dataclass(frozen=True, slots=True)
class SeededCluster:
    """Jobs that contend for the slots of one node. A round and a stop take `start_s / 5` seconds each."""

    seed: int
    slots: int
    start_s: float
    jobs: tuple[Planned, ...]


def seeded_cluster(seed: int) -> SeededCluster:
    """Return the cluster of a seed: two to six slots, and four to nine jobs of one to four slots."""
    chance = random.Random(seed)  # a repeatable draw, no secret
    slots, start_s = chance.randint(2, 6), chance.choice(_START_S)
    jobs, at_s = [], 0.0
    for number in range(chance.randint(4, 9)):
        at_s += chance.choice((0.0, 0.0, 1.0, 4.0, 20.0)) * start_s
        minimum = min(slots, chance.choice((1, 1, 2, 2, 3)))
        jobs.append(
            Planned(
                name=f"job{chr(97 + number)}",
                at_s=at_s,
                work_s=chance.choice((2.0, 5.0, 25.0, 60.0)) * start_s,
                minimum=minimum,
                maximum=chance.randint(minimum, slots),
                priority=chance.choice((10, 30, 50, 70, 90)),
                resize=chance.choice(("live", "restart")),
            )
        )
    return SeededCluster(seed, slots, start_s, tuple(jobs))


def measured_seed(seed: int) -> dict[str, float]:
    """Return the measures of the cluster of a seed, and the number of promised slots that were taken back."""
    cluster = seeded_cluster(seed)
    round_s = cluster.start_s / 5.0
    played = VirtualCluster(
        slots=cluster.slots, round_s=round_s, start_s=cluster.start_s, stop_s=cluster.start_s / 5.0
    )
    work_s = sum(job.work_s + cluster.start_s for job in cluster.jobs) / cluster.slots
    most_s = cluster.jobs[-1].at_s + _PATIENCE * max(work_s, *(job.work_s for job in cluster.jobs))
    pasts = played.play(cluster.jobs, most_s)
    found = measures(pasts, cluster.slots, [past.completion_s for past in pasts], played.grants)
    return {key: found[key] for key in _SHOWN} | {"broken_promises": float(len(played.broken))}


def totals_of(seeds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of counts, the changes per hour of all job hours together, and the mean completion time in seconds."""
    summed = {*SUMMED, "vacates", "changes", "job_hours", "broken_promises"}
    found = {
        key: sum(one[key] for one in seeds.values()) for key in next(iter(seeds.values())) if key in summed
    }
    hours = max(found["job_hours"], 1e-9)
    forced = sum(one["forced_per_job_hour"] * one["job_hours"] for one in seeds.values())
    return found | {
        "changes_per_job_hour": found["changes"] / hours,
        "forced_per_job_hour": forced / hours,
        "completion_s": sum(one["completion_s"] for one in seeds.values()) / len(seeds),
    }


def seeds_table(seeds: Mapping[str, Mapping[str, float]], totals: Mapping[str, float]) -> str:
    """Return a table with a line for each seed, and the totals."""
    keys = list(next(iter(seeds.values())))
    lines = [f"{'seed':>6}" + "".join(f"{key:>22}" for key in keys)]
    for name, one in [*seeds.items(), ("all", totals)]:
        lines.append(f"{name:>6}" + "".join(f"{one[key]:22.6g}" for key in keys))
    return "\n".join(lines)


def measure_seeds(seeds: Iterable[int]) -> dict[str, dict[str, float]]:
    """Return the measures of the clusters of these seeds, by seed."""
    return {str(seed): measured_seed(seed) for seed in seeds}
