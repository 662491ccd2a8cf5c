"""Quotas of projects in a round: rows, claims on guaranteed slots, and weights by past usage.

Shapes use `J` jobs that the round decides about and `C` columns. Guaranteed slots may be of any pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headway.contract.spec import Resize
from service.domain.allocation.configurations.capacity import PoolCapacity
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.cluster.snapshot import FIRM_ROWS, QUOTA_ROWS, Snapshot, Tenant, lent_row, quota_row
from service.domain.jobs.job import Job
from service.domain.policies.framework.policy import RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

_MOST_SHARE = 2.0
"""Bound on the factor by which a project's usage changes its weights, up or down: 25 points of priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuaranteeClaim:
    """Claim of a project in this round on guaranteed slots that others borrow.

    Attributes:
        project: its name.
        guaranteed: number of slots in its quota.
        open: the part of them that is not held by jobs outside the round.
        wanted: the part of those that its other jobs could take now. The claims of all projects together are
            at most the capacity.
        members: (J,) its jobs.
        protected: (J,) jobs whose smallest sizes together fit the guarantee: by priority, then running jobs
            first.
        least: (J,) slots of the smallest size of every job; infinite for a job that may have nothing now.
        lent: row for the slots that all other projects may take together.
    """

    project: str
    guaranteed: int
    open: int
    wanted: int
    members: BoolArray
    protected: BoolArray
    least: FloatArray
    lent: Row

    def unmet(self, chosen: IntArray, slots: IntArray) -> list[int]:
        """Return the protected jobs without slots while their project has less than its guarantee, in the
        order of jobs.
        """
        if self.taken(chosen, slots) >= self.open:
            return []
        return np.flatnonzero(self.protected & (chosen == NOTHING)).tolist()

    def taken(self, chosen: IntArray, slots: IntArray) -> int:
        """Return the number of slots that the project's jobs get."""
        return int(slots[chosen[self.members & (chosen != NOTHING)]].sum())

    def is_short(self, chosen: IntArray, slots: IntArray) -> bool:
        """Return True if a choice does not satisfy the claim."""
        return bool(self._is_crowded(chosen, slots) or self.unmet(chosen, slots))

    def is_raised(self, current: IntArray, chosen: IntArray, slots: IntArray) -> bool:
        """Return True if a choice gives the project, or should give it, more slots of its claim than it has
        now.
        """
        gains = self.taken(current, slots) < min(self.taken(chosen, slots), self.wanted)
        return gains or self.is_short(chosen, slots)

    def _is_crowded(self, chosen: IntArray, slots: IntArray) -> bool:
        """Return True if the project has less than it wants while others have more than they may."""
        others = chosen[~self.members & (chosen != NOTHING)]
        too_much = float(self.lent.demand[others].sum()) > self.lent.capacity
        return too_much and self.taken(chosen, slots) < self.wanted

    def lending(self, slots: int) -> Row:
        """Return the row of the other projects if the project's own jobs take this number of slots."""
        return replace(self.lent, capacity=self.lent.capacity + max(0, self.wanted - slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Quotas of a round.

    `rows` always hold, and `projects` maps the name of each row to its project. `share` (J,) is
    `RoundInput.share`.
    """

    rows: tuple[Row, ...] = ()
    projects: Mapping[str, str | None] = field(default_factory=dict)
    claims: tuple[GuaranteeClaim, ...] = ()
    share: FloatArray | None = None

    def too_large(self, given: RoundInput) -> BoolArray:
        """Return the jobs (J,) of projects that hold more than their maximum, as after a quota was lowered."""
        above = np.zeros(len(given.current), dtype=np.bool_)
        for row in self.rows:
            if row.jobs is not None and row.name.startswith(QUOTA_ROWS):
                holders = given.current[row.jobs & (given.current != NOTHING)]
                above |= row.jobs & (float(row.demand[holders].sum()) > row.capacity)
        return above


def tenancy_of(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    columns: Columns,
    rooms: Mapping[str, PoolCapacity],
    allowed: BoolArray,
    current: IntArray,
) -> Tenancy:
    """Return the quotas of a round; none if no project has one. `allowed` (J, C) is what jobs may be given now."""
    if not snapshot.projects:
        return Tenancy()
    members = {
        project: np.array([job.spec.project == project for job in jobs], dtype=np.bool_)
        for project in sorted(snapshot.projects)
    }
    settled = _settled(snapshot, jobs)
    rows = [
        Row(
            name=quota_row(project),
            capacity=float(max(0, tenant.quota.max_slots - settled[project])),
            demand=columns.configurations.slots.astype(np.float64),
            jobs=members[project],
        )
        for project, tenant in sorted(snapshot.projects.items())
        if tenant.quota.max_slots is not None
    ]
    return Tenancy(
        rows=(*rows, *_firm_rows(snapshot, jobs, columns, rooms)),
        projects={f"{kind}{one}": one for one in members for kind in (QUOTA_ROWS, FIRM_ROWS)},
        claims=_claims(snapshot, jobs, columns, rooms, members, settled, allowed, current),
        share=shares_by_use(snapshot.projects, [job.spec.project for job in jobs]),
    )


def shares_by_use(projects: Mapping[str, Tenant], of_jobs: Sequence[str]) -> FloatArray | None:
    """Return the factors (J,) for past usage: 2 ** (1 - used / due), within a factor of 2. None with a single
    project.

    `used` is a project's fraction of what the projects of these jobs have used, `due` its fraction of their
    weights. This is the fair-share factor of batch schedulers, 2 ** (-used / due), scaled so that usage equal
    to the due share gives 1.
    """
    present = sorted(set(of_jobs))
    if len(present) < 2:
        return None
    tenants = {project: projects.get(project, Tenant()) for project in present}
    weights = sum(one.quota.weight for one in tenants.values())
    used_slot_s = sum(one.used_slot_s for one in tenants.values())
    if not used_slot_s > 0:
        return None
    factor = {
        project: 2.0 ** (1.0 - (one.used_slot_s / used_slot_s) / (one.quota.weight / weights))
        for project, one in tenants.items()
    }
    of_project = {project: min(max(one, 1 / _MOST_SHARE), _MOST_SHARE) for project, one in factor.items()}
    return np.array([of_project[project] for project in of_jobs])


def _settled(snapshot: Snapshot, jobs: Sequence[Job]) -> Counter[str]:
    """Return the slots by project of jobs outside the round."""
    settled: Counter[str] = Counter()
    for job, slots in _outside(snapshot, jobs):
        settled[job.spec.project] += slots
    return settled


def _outside(snapshot: Snapshot, jobs: Sequence[Job]) -> list[tuple[Job, int]]:
    """Return the jobs outside the round with the number of slots that each holds."""
    deciding = {job.id for job in jobs}
    return [
        (snapshot.jobs[job_id], len(keys))
        for job_id, keys in snapshot.holdings.items()
        if job_id in snapshot.jobs and job_id not in deciding
    ]


def _firm_rows(
    snapshot: Snapshot, jobs: Sequence[Job], columns: Columns, rooms: Mapping[str, PoolCapacity]
) -> list[Row]:
    """Return the rows that keep jobs of fixed size off slots guaranteed to another project.

    These jobs could not return the slots.
    """
    firm = np.array([job.spec.elastic.resize is Resize.NEVER for job in jobs], dtype=np.bool_)
    if not firm.any():
        return []
    outside = [
        (job.spec.project, slots)
        for job, slots in _outside(snapshot, jobs)
        if job.spec.elastic.resize is Resize.NEVER
    ]
    in_service = sum(int(room.slots.sum()) for room in rooms.values())
    rows = []
    for project, tenant in sorted(snapshot.projects.items()):
        of_others = firm & np.array([job.spec.project != project for job in jobs], dtype=np.bool_)
        if not tenant.quota.slots or not of_others.any():
            continue
        held = sum(slots for holder, slots in outside if holder != project)
        rows.append(
            Row(
                name=f"{FIRM_ROWS}{project}",
                capacity=float(max(0, in_service - tenant.quota.slots - held)),
                demand=columns.configurations.slots.astype(np.float64),
                jobs=of_others,
            )
        )
    return rows


def _claims(
    snapshot: Snapshot,
    jobs: Sequence[Job],
    columns: Columns,
    rooms: Mapping[str, PoolCapacity],
    members: Mapping[str, BoolArray],
    settled: Counter[str],
    allowed: BoolArray,
    current: IntArray,
) -> tuple[GuaranteeClaim, ...]:
    slots = columns.configurations.slots
    least = np.where(allowed, slots, np.inf).min(axis=1, initial=np.inf)
    most = np.where(allowed, slots, 0).max(axis=1, initial=0)
    room = np.array([one.room.sum() for one in rooms.values()], dtype=np.int64)
    guaranteed = {project: snapshot.projects[project].quota.slots or 0 for project in members}
    wanted: dict[str, int] = {}
    for project, own in members.items():
        wants = min(guaranteed[project] - settled[project], int(most[own].sum()))
        if wants > 0:
            wanted[project] = wants
    promised, there = sum(wanted.values()), int(room.sum())
    claims = []
    for project, wants in wanted.items():
        # More was promised than there is: all claims are reduced in proportion.
        fair = wants if promised <= there else wants * there // promised
        own = members[project]
        protected = _protected(jobs, own, least, current, fair)
        pools = (columns.parts[allowed[own].any(axis=0)] > 0).any(axis=0)
        demand = columns.demand[:, pools].sum(axis=1).astype(np.float64)
        at_least = np.where(~own & (current >= 0) & np.isfinite(least), least, 0.0)
        at_least[current >= 0] *= demand[current[current >= 0]] > 0
        here = int(room[pools].sum())
        # Jobs elsewhere shrink for the whole claim, but are stopped only for its protected part.
        capacity = max(here - fair, min(here - float(least[protected].sum()), float(at_least.sum())), 0.0)
        # The claim leaves the other jobs their smallest sizes.
        fair = min(fair, int(here - capacity))
        claims.append(
            GuaranteeClaim(
                project=project,
                guaranteed=guaranteed[project],
                open=min(guaranteed[project] - settled[project], here),
                wanted=fair,
                members=own,
                protected=protected,
                least=least,
                lent=Row(name=lent_row(project), capacity=float(capacity), demand=demand, jobs=~own),
            )
        )
    return tuple(claims)


def _protected(
    jobs: Sequence[Job], own: BoolArray, least: FloatArray, current: IntArray, slots: int
) -> BoolArray:
    """Return the jobs (J,) of a project whose smallest sizes fit into this number of slots."""
    protected = np.zeros(len(jobs), dtype=np.bool_)
    order = sorted(
        np.flatnonzero(own).tolist(), key=lambda row: (-jobs[row].spec.priority, current[row] < 0, row)
    )
    for row in order:
        if least[row] <= slots:
            protected[row] = True
            slots -= int(least[row])
    return protected
