"""Clusters, job streams and what a change costs: what a replay is given."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.replay.profiles import Application, read_application
from service.domain.allocation.knapsack.problem import Row
from service.domain.policies.policy import Configurations


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal nodes; `slots` of a node is a power of two."""

    kind: str
    nodes: int
    slots: int


CLUSTERS = {
    "homogeneous": (Pool("t4", 16, 4),),
    "heterogeneous": (Pool("t4", 6, 4), Pool("rtx2080ti", 3, 8), Pool("a100", 2, 8)),
}
"""Those of the published simulations, of 64 slots each."""
USD_PER_H = {"t4": 1.0, "rtx2080ti": 1.6, "a100": 4.0}
"""Prices of a slot, in proportion to what clouds ask; only policies that look at prices mind them."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the stream. `application` indexes those of the world; `requested_slots` is what a careful user asked for."""

    name: str
    submit_s: float
    application: int
    requested_slots: int


@dataclass(frozen=True, slots=True)
class World:
    """What happens if nobody decides anything yet. Jobs are in the order of their submits."""

    configurations: Configurations
    rows: tuple[Row, ...]
    applications: tuple[Application, ...]
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the cluster works.

    Attributes:
        interval_s: between two rounds.
        on_events: a round also when a job is submitted or ends.
        live_pause_s: what a change of the slots of a running job costs where it is live; None: a restart. A start from
            nothing always costs the application's restart.
        lengths_known: the policy sees how much work is left.
        give_up_s: the replay ends that long after the last submit, whatever is still running.
    """

    interval_s: float = 60.0
    on_events: bool = False
    live_pause_s: float | None = None
    lengths_known: bool = True
    give_up_s: float = 14 * 86_400.0


def columns(pools: Sequence[Pool]) -> tuple[Configurations, tuple[Row, ...]]:
    """Powers of two within a node and whole nodes beyond (Sia, SOSP'23, section 3.1), which pack whenever they are no
    more than the slots; and a row of slots for each kind.
    """
    kinds = tuple(pool.kind for pool in pools)
    table = [
        (kind, slots, nodes)
        for kind, pool in enumerate(pools)
        for slots, nodes in [
            *((2**power, 1) for power in range(pool.slots.bit_length())),
            *((count * pool.slots, count) for count in range(2, pool.nodes + 1)),
        ]
    ]
    kind, slots, nodes = np.array(table, dtype=np.int64).T
    price = np.array([USD_PER_H.get(pool.kind, 1.0) for pool in pools])
    configurations = Configurations(
        kinds=kinds, kind=kind, slots=slots, nodes=nodes, usd_per_h=price[kind] * slots
    )
    rows = tuple(
        Row(
            name=pool.kind,
            capacity=float(pool.nodes * pool.slots),
            demand=np.where(kind == index, slots, 0).astype(np.float64),
        )
        for index, pool in enumerate(pools)
    )
    return configurations, rows


def read_world(data: Path, cluster: str, workload: str) -> World:
    """A published cluster and a job stream over the measured profiles in `data`. Raises NoData."""
    configurations, rows = columns(CLUSTERS[cluster])
    with (data / "workloads" / f"{workload}.csv").open(newline="") as lines:
        stream = sorted(csv.DictReader(lines), key=lambda row: float(row["time"]))
    names = sorted({row["application"] for row in stream})
    applications = tuple(read_application(data / "profiles" / name, configurations) for name in names)
    jobs = tuple(
        Job(row["name"], float(row["time"]), names.index(row["application"]), int(row["num_replicas"]))
        for row in stream
    )
    return World(configurations, rows, applications, jobs)
