"""Scope of a round: its jobs, the slots that they hold, and the configurations that they could have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headway.contract.spec import JobSpec
from service.domain.allocation.configurations.capacity import PoolCapacity, capacities_of
from service.domain.allocation.configurations.configurations import Columns, columns_of
from service.domain.allocation.configurations.eligibility import Holding, deciding_jobs, holding_of
from service.domain.cluster.snapshot import Snapshot
from service.domain.cluster.usual_costs import UsualCosts, usual_costs
from service.domain.jobs.job import Job
from service.domain.shared.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundScope:
    """The jobs (J,) of a round and the configurations (C,) that they could have.

    Attributes:
        snapshot: state of the cluster.
        jobs: the jobs that the round decides about, in the order of their submission.
        holdings: the slots that each job holds, by job id, in the order of the jobs.
        capacities: the capacity of each pool in service, by pool name.
        columns: the configurations.
        current: (J,) the column of the slots that each job holds; -1 for a job that holds none or must leave
            some of them.
        usual: seconds of a stop and a start that were not measured for the job itself.
    """

    snapshot: Snapshot
    jobs: tuple[Job, ...]
    holdings: Mapping[str, Holding]
    capacities: Mapping[str, PoolCapacity]
    columns: Columns
    current: IntArray
    usual: UsualCosts

    def usable_slots(self, spec: JobSpec) -> dict[str, int]:
        """Return all slots in service of each kind that a job may run on, in the markets that it accepts."""
        usable: dict[str, int] = {}
        for capacity in self.capacities.values():
            if capacity.pool.serves(spec):
                kind = capacity.pool.kind
                usable[kind] = usable.get(kind, 0) + int(capacity.slots.sum())
        return usable


def scope_of(snapshot: Snapshot) -> RoundScope:
    """Return the scope of the round that decides on a snapshot."""
    jobs = deciding_jobs(snapshot)
    holdings = {job.id: holding_of(job, snapshot) for job in jobs}
    capacities = capacities_of(snapshot, holdings)
    columns = columns_of(jobs, holdings, capacities, snapshot.market_limits)
    current = [columns.held(holding) if holding.whole else -1 for holding in holdings.values()]
    return RoundScope(
        snapshot=snapshot,
        jobs=jobs,
        holdings=holdings,
        capacities=capacities,
        columns=columns,
        current=np.array(current, dtype=np.int64),
        usual=usual_costs(snapshot),
    )
