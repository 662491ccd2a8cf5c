"""Texts for users on quotas: usage of a project, and limits on its jobs. They never name another project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headway.contract.spec import Resize
from headway.contract.views.jobs import Reason
from service.domain.allocation.decision.reason_texts import ReasonText
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.knapsack.problem import Row
from service.domain.allocation.limits.tenancy import GuaranteeClaim
from service.domain.cluster.pools import slots_of
from service.domain.cluster.snapshot import FIRM_ROWS, Snapshot, Tenant, quota_row
from service.domain.shared.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUsage:
    """Slot usage of a project.

    `held` slots include `borrowed` ones beyond its guarantee. `lent` slots of its guarantee are held by other
    projects.
    """

    held: int
    borrowed: int
    lent: int
    borrowers: tuple[str, ...]
    """Projects that hold more than their guarantee, the largest borrowers first; meaningful if something is
    lent.
    """


def quota_usage(snapshot: Snapshot, project: str) -> QuotaUsage:
    """Return the slot usage of a project.

    Slots count as lent if the project lacks them, none are free, and others hold as many beyond their
    guarantees.
    """
    held: Counter[str] = Counter()
    for job_id, keys in snapshot.holdings.items():
        if job_id in snapshot.jobs:
            held[snapshot.jobs[job_id].spec.project] += len(keys)
    beyond = {one: slots - _guaranteed(snapshot, one) for one, slots in held.items() if one != project}
    borrowers = sorted(
        (one for one, slots in beyond.items() if slots > 0), key=lambda one: (-beyond[one], one)
    )
    own, guaranteed = held[project], _guaranteed(snapshot, project)
    lacking = max(0, guaranteed - own - len(snapshot.free))
    lent = min(lacking, sum(beyond[one] for one in borrowers))
    return QuotaUsage(held=own, borrowed=max(0, own - guaranteed), lent=lent, borrowers=tuple(borrowers))


def guarantee_text(snapshot: Snapshot, project: str) -> str:
    """Return the slot usage as a sentence; empty for a project without a guarantee."""
    guaranteed = _guaranteed(snapshot, project)
    if not guaranteed:
        return ""
    usage = quota_usage(snapshot, project)
    guarantee = slots_of(guaranteed, "guaranteed")
    if usage.borrowed:  # Then it holds all of its guarantee, and none is lent.
        return f"project {project} holds its {guarantee} and borrows {usage.borrowed} more"
    text = f"project {project} holds {usage.held} of its {guarantee}"
    if usage.lent:
        borrowers = "another project" if len(usage.borrowers) == 1 else "other projects"
        text += f"; {usage.lent} are lent to {borrowers} and return as jobs there shrink"
    return text


def why_given_up(claim: GuaranteeClaim) -> str:
    """Return the reason that a job has fewer slots, for users of its own project."""
    return f"slots return to another project, which has a guarantee of {slots_of(claim.guaranteed, None)}"


def quota_use(rows: Iterable[Row], chosen: IntArray) -> dict[str, float]:
    """Return the slots that choices (J,) take of each row that limits some jobs, by its name."""
    return {row.name: row.taken(chosen) for row in rows if row.jobs is not None}


def why_at_quota(round_: Round, row: int, taken: Mapping[str, float]) -> ReasonText | None:
    """Return the quota that leaves too few slots for the job's smallest size; None if no quota does.

    `taken` is the result of `quota_use`.
    """
    job, slots = round_.jobs[row], round_.columns.configurations.slots
    may = slots[round_.given.allowed[row]]
    if not len(may):
        return None
    least, project = int(may.min()), job.spec.project
    most = round_.snapshot.projects.get(project, Tenant()).quota.max_slots
    for one in round_.tenancy.rows:
        if one.jobs is None or not one.jobs[row]:
            continue
        if one.capacity - taken[one.name] >= least:
            continue
        if one.name == quota_row(project) and most is not None:
            has = most - int(one.capacity) + int(taken[one.name])
            return ReasonText(
                Reason.QUOTA,
                f"project {project} holds {has} of its maximum of {slots_of(most, None)}, and this job needs at least {least}; "
                "it starts when other jobs of the project end or shrink, or when max_slots is raised",
            )
        if one.name.startswith(FIRM_ROWS) and job.spec.elastic.resize is Resize.NEVER:
            return ReasonText(
                Reason.QUOTA,
                "the remaining slots are guaranteed to other projects, and a job that never changes "
                "(elastic.resize: never) could not return them; allow it to change, or wait",
            )
    return None


def why_above_quota(snapshot: Snapshot, project: str) -> str:
    """Return the statement that a project exceeds its maximum of slots; empty if it does not."""
    most = snapshot.projects.get(project, Tenant()).quota.max_slots
    held = quota_usage(snapshot, project).held if most is not None else 0
    if most is None or held <= most:
        return ""
    return f"project {project} holds {held} slots, more than its maximum of {most}"


def _guaranteed(snapshot: Snapshot, project: str) -> int:
    return snapshot.projects.get(project, Tenant()).quota.slots or 0
