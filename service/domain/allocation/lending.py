"""What is said of quotas: how a project stands, and why its jobs get less. Another project is never named."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.jobs import Reason
from headway.contract.spec import Resize
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.round import Round
from service.domain.allocation.sentences import Sentence
from service.domain.allocation.tenancy import Claim
from service.domain.arrays import IntArray
from service.domain.cluster import FIRM_ROWS, Snapshot, Tenant, quota_row
from service.domain.pools import slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Slots of a project: `held`, of which `borrowed` are beyond its guarantee, and `lent`: what others hold of it."""

    held: int
    borrowed: int
    lent: int
    borrowers: tuple[str, ...]
    """Projects that hold more than they are guaranteed, those that borrow most first; of use where something is lent."""


def standing_of(snapshot: Snapshot, project: str) -> Standing:
    """How a project stands now. What is lent of it is what it lacks and others hold beyond their guarantees."""
    held: dict[str, int] = {}
    for job_id, keys in snapshot.holdings.items():
        job = snapshot.jobs.get(job_id)
        if job is not None:
            held[job.spec.project] = held.get(job.spec.project, 0) + len(keys)
    beyond = {one: slots - _guaranteed(snapshot, one) for one, slots in held.items() if one != project}
    borrowers = sorted(
        (one for one, slots in beyond.items() if slots > 0), key=lambda one: (-beyond[one], one)
    )
    own, guaranteed = held.get(project, 0), _guaranteed(snapshot, project)
    free = len(snapshot.free)
    lent = min(max(0, guaranteed - own - free), sum(beyond[one] for one in borrowers))
    return Standing(held=own, borrowed=max(0, own - guaranteed), lent=lent, borrowers=tuple(borrowers))


def standing_text(snapshot: Snapshot, project: str) -> str:
    """The same as a sentence; empty for a project that is guaranteed nothing."""
    guaranteed = _guaranteed(snapshot, project)
    if not guaranteed:
        return ""
    stands = standing_of(snapshot, project)
    text = f"project {project} holds {stands.held} of its {slots_of(guaranteed, None)}"
    if stands.borrowed:
        return f"project {project} holds its {slots_of(guaranteed, None)} and borrows {stands.borrowed}"
    if stands.lent:
        whom = "another project" if len(stands.borrowers) == 1 else "other projects"
        text += f"; {stands.lent} more are lent to {whom} and come back as its jobs shrink"
    return text


def why_given_up(claim: Claim) -> str:
    """Why a job has less: for people of its own project."""
    return f"slots go back to another project, to which {slots_of(claim.guaranteed, None)} are guaranteed"


def why_at_quota(round_: Round, row: int, chosen: IntArray) -> Sentence | None:
    """The quota that leaves too few slots for the smallest size that a job could have; None: that is not why."""
    job, slots = round_.jobs[row], round_.columns.configurations.slots
    may = slots[round_.given.allowed[row]]
    if not len(may):
        return None
    least, project = int(may.min()), job.spec.project
    most = round_.snapshot.projects.get(project, Tenant()).quota.max_slots
    for one in round_.tenancy.rows:
        if one.jobs is None or not one.jobs[row]:
            continue
        others = chosen[one.jobs & (chosen != NOTHING)]
        if one.capacity - float(one.demand[others].sum()) >= least:
            continue
        if one.name == quota_row(project) and most is not None:
            has = most - int(one.capacity) + int(one.demand[others].sum())
            return Sentence(
                Reason.QUOTA,
                f"project {project} holds {has} of the {slots_of(most, None)} that it may have at most, and this job needs at "
                f"least {least}; goes on when others of the project end or shrink, or its max_slots is raised",
            )
        if one.name.startswith(FIRM_ROWS) and job.spec.elastic.resize is Resize.NEVER:
            return Sentence(
                Reason.QUOTA,
                "the slots that are left are guaranteed to other projects, and a job that never changes "
                "(elastic.resize: never) could not give them back; allow it to change, or wait",
            )
    return None


def why_above_quota(snapshot: Snapshot, project: str) -> str:
    """That a project holds more than it may have at most; empty where it does not."""
    most = snapshot.projects.get(project, Tenant()).quota.max_slots
    held = standing_of(snapshot, project).held if most is not None else 0
    if most is None or held <= most:
        return ""
    return f"project {project} holds {held} slots and may have {most} at most"


def _guaranteed(snapshot: Snapshot, project: str) -> int:
    return snapshot.projects.get(project, Tenant()).quota.slots or 0
