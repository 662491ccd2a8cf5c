"""Explanation of a wait: total capacity, remaining capacity, and budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from heapq import nsmallest

import numpy as np

from headway.contract.agents import NodeState
from headway.contract.values.dollars import dollars
from headway.contract.values.markets import Market
from headway.contract.views.jobs import Reason
from service.domain.allocation.decision.expected_starts import Ends, ExpectedStart
from service.domain.allocation.decision.explain import Case
from service.domain.allocation.decision.holder_texts import Holders, holders_in, surplus_text, unbounded_text
from service.domain.allocation.decision.quota_texts import (
    guarantee_text,
    quota_use,
    why_at_quota,
    why_given_up,
)
from service.domain.allocation.decision.reason_texts import NAMED, ReasonText, named
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.cluster.pools import Pool, slots_of
from service.domain.cluster.snapshot import Cap, SlotKey, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.budget import long_run_budget
from service.domain.policies.framework.policy import Choices, Policy, RoundInput

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class WaitingFacts:
    """Facts that the messages of all waiting jobs share.

    Attributes:
        any_node: True if there is a node that is not lost.
        in_service: number of slots by pool of nodes that take jobs.
        left: number of them by pool that the round gives to no job.
        held_by: text on the largest holders, for users of each project that has jobs.
        quotas: slots that the round takes of each quota, by the name of its row.
        guarantee_texts: text on the usage of its guarantee, by project.
        ends: expected ends of running jobs, for the starts of the jobs that get nothing.
        holders: returns the jobs that hold slots of some pools.
        caps: each with the dollars per hour that jobs take of it.
        quarantine_text: text on the number of slots in quarantine, for the end of a message; empty if there
            are none.
    """

    any_node: bool
    in_service: Mapping[Pool, int]
    left: Mapping[Pool, int]
    held_by: Mapping[str, str]
    quotas: Mapping[str, float]
    guarantee_texts: Mapping[str, str]
    ends: Ends
    holders: Callable[[frozenset[Pool]], Holders]
    caps: tuple[tuple[Cap, float], ...]
    quarantine_text: str


def waiting_facts(round_: Round, choices: Choices, left: Iterable[SlotKey]) -> WaitingFacts:
    """Return the facts of a round that leaves these slots unused."""
    snapshot = round_.snapshot
    nodes = snapshot.nodes.values()
    quarantined = sum(len(node.quarantined) for node in nodes if node.takes_jobs)
    return WaitingFacts(
        any_node=any(node.state is not NodeState.LOST for node in nodes),
        in_service=Counter(
            snapshot.pool_on(node, kind) for node in nodes if node.takes_jobs for kind in node.slots.values()
        ),
        left=Counter(pool for pool in map(snapshot.pool_of, left) if pool is not None),
        held_by=_held_by(snapshot),
        quotas=quota_use(round_.tenancy.rows, choices.chosen),
        guarantee_texts={project: guarantee_text(snapshot, project) for project in snapshot.projects},
        ends=Ends(round_, choices),
        holders=cache(partial(holders_in, snapshot=snapshot)),
        caps=tuple((cap, _taken(round_.given, choices, cap)) for cap in snapshot.caps),
        quarantine_text=f"; {slots_of(quarantined, None)} more in quarantine (`headway nodes`)"
        if quarantined
        else "",
    )


def small_budget_text(policy: Policy) -> str:
    """Return text on a long-run budget that cannot pay all jobs at their cheapest; empty if it can, or without one."""
    budget = long_run_budget(policy)
    if budget is None or budget.rents_usd_per_h < 0:
        return ""
    return (
        f"the long-run budget of {dollars(budget.usd_per_h)}/h cannot pay all jobs at their cheapest; "
        "raise it with `headway policy budget --set usd_per_h=N`"
    )


def why_wait(case: Case, facts: WaitingFacts) -> ReasonText:
    """Return the reason that a job gets nothing."""
    job, in_service = case.job, facts.in_service
    if not facts.any_node:
        return ReasonText(
            Reason.WAITING_FOR_CAPACITY,
            "no node has joined the cluster; start one with `headway agent` or `headway up`",
        )
    kinds = {pool.kind for pool in in_service}
    wanted = job.spec.resources.devices or tuple(sorted(kinds))
    if wanted and not kinds & set(wanted):
        available = ", ".join(sorted(kinds)) or "none"
        return ReasonText(
            Reason.NO_SUCH_DEVICE,
            f"no node in service has {' or '.join(wanted)}; device kinds in service: {available}{facts.quarantine_text}",
        )
    if job.spec.image is not None and not any(pool.containers for pool in in_service if pool.kind in wanted):
        return ReasonText(
            Reason.NO_CONTAINER_ENGINE,
            f"the job runs in an image, and no node in service with {' or '.join(wanted) or 'slots'} has a container engine; "
            "start Docker or Podman on one, and restart its agent",
        )
    need = slots_of(min(job.sizes), None)
    serving = {pool: count for pool, count in in_service.items() if pool.serves(job.spec)}
    largest = _together(serving, job)
    if min(job.sizes) > largest:
        return ReasonText(
            Reason.WAITING_FOR_CAPACITY,
            (
                f"needs at least {need} {job.spec.elastic.kinds_text}, and the nodes in service have {largest}"
                if any(in_service.values())
                else "no slot of any node is in service; `headway nodes` shows the state of each, and "
                "`headway uncordon NODE` ends a drain"
            )
            + _elsewhere(job, in_service)
            + facts.quarantine_text,
        )
    at_quota = why_at_quota(case.round, case.row, facts.quotas)
    if at_quota is not None:
        return at_quota
    left = {pool: count for pool, count in facts.left.items() if pool.serves(job.spec)}
    if _together(left, job) >= min(job.sizes):
        unpaid = why_unpaid(case, facts)
        if unpaid is not None:
            return unpaid
    pools = frozenset(pool for pool in case.round.snapshot.pools.values() if pool.serves(job.spec))
    start = facts.ends.start_of(case.row, pools, sum(left.values()))
    if start is not None and start.wait_s >= float(case.round.contest.latest_turn_s[case.row]):
        start = None  # its turn comes before
    return ReasonText(
        Reason.WAITING_FOR_CAPACITY,
        f"needs at least {need}, and {sum(left.values())} of {sum(serving.values())} are left"
        + _elsewhere(job, facts.left)
        + facts.held_by[job.spec.project]
        + _why_no_surplus(case, start, facts.holders(pools), sum(left.values()))
        + _quota_effect(case, facts),
        start.between(case.round.snapshot.now)[1] if start is not None else None,
    )


def _why_no_surplus(case: Case, start: ExpectedStart | None, holders: Holders, left: int) -> str:
    """Return the reason that a waiting job gets no surplus of other jobs, and its expected start or its turn.

    `holders` hold the slots that it could use, and `left` of these are free.
    """
    round_, row, project = case.round, case.row, case.job.spec.project
    contest, seats = round_.contest, round_.contest.seats
    if seats.smallest[row] == NOTHING:
        return ""
    if seats.reserving == row:
        text = "; slots are kept for it until the minimum run times of others are over"
    elif contest.reserved[row] and seats.reserving is not None:
        text = (
            f"; slots are kept for {named([round_.jobs[seats.reserving]], project)}, which has waited longer"
        )
    elif seats.barred[row]:
        text = _why_barred(case)
    else:
        least = int(round_.columns.configurations.slots[seats.smallest[row]])
        text = surplus_text(holders, least, left, project)
    left_s = float(contest.latest_turn_s[row])
    if start is not None:
        text += f"; {start.text(round_.snapshot.now, project)}"
    if not np.isfinite(left_s):
        return text if start is not None else text + unbounded_text(holders, project)
    at = round_.snapshot.now + timedelta(seconds=left_s)
    return f"{text}; its turn comes by {at:%H:%M} UTC at the latest"


def _why_barred(case: Case) -> str:
    """Return the reason that a job may not have slots although it is its turn."""
    priority = case.job.spec.priority
    rests_s = case.round.contest.tenure.rests_s
    if rests_s is not None and rests_s[case.row] > 0:
        return f"; it was stopped for other jobs lately, and leaves free slots to others for {rests_s[case.row]:.0f} s"
    worth = "nobody is stopped for less gain than that costs"
    if any(one.spec.priority > priority for one in case.round.snapshot.jobs.values()):
        return f"; slots go to jobs of higher priorities first, and {worth}"
    return f"; {worth}"


def _quota_effect(case: Case, facts: WaitingFacts) -> str:
    """Return the effect of quotas on the wait, as text."""
    if case.given_up_for is not None:
        return f"; {why_given_up(case.given_up_for)}"
    text = facts.guarantee_texts.get(case.job.spec.project, "")
    return f"; {text}" if text else ""


def _together(slots: Mapping[Pool, int], job: Job) -> int:
    """Return how many of the slots the job may hold at once, on all markets together."""
    by_kind: Counter[str] = Counter()
    for pool, count in slots.items():
        by_kind[pool.kind] += count
    return job.spec.elastic.most_together(by_kind)


def _elsewhere(job: Job, slots: Mapping[Pool, int]) -> str:
    """Return the slots on the market that the job does not accept, as text."""
    if job.spec.market == "mixed":
        return ""
    devices = job.spec.resources.devices
    other = Market.SPOT if job.spec.market == "on-demand" else Market.ON_DEMAND
    count = sum(
        count
        for pool, count in slots.items()
        if pool.market is other and (not devices or pool.kind in devices)
    )
    if not count:
        return ""
    return f"; {slots_of(count, other)} exist, but the job accepts {job.spec.market} only (market)"


def why_unpaid(case: Case, facts: WaitingFacts) -> ReasonText | None:
    """Return the cap that leaves too few dollars for the job's cheapest configuration; None if no cap does."""
    offered = case.round.columns.configurations.usd_per_h[case.round.notes.allowed[case.row]]
    if not len(offered):
        return None
    least = float(offered.min())
    for cap, taken in facts.caps:
        left = max(0.0, cap.usd_per_h - taken)
        if cap.project in {None, case.job.spec.project} and least > left + _ROUNDING:
            if cap.usd_per_h <= 0:
                message = (
                    f"budget {cap.name} is spent; see its period with `headway budget list`, or raise it"
                )
                return ReasonText(Reason.BUDGET, message)
            return ReasonText(
                Reason.BUDGET,
                f"costs at least {dollars(least)} an hour, but budget {cap.name} ({dollars(cap.usd_per_h)} an hour) "
                f"has {dollars(left)} left",
            )
    return None


def _taken(given: RoundInput, choices: Choices, cap: Cap) -> float:
    """Return the dollars per hour that the cap counts after the round."""
    row = next(one for one in given.rows if one.name == cap.row)
    return cap.usd_per_h - row.capacity + row.taken(choices.chosen)


def _held_by(snapshot: Snapshot) -> dict[str, str]:
    """Return the largest holders as text by project: its own jobs by name, those of other projects as a sum."""
    holders: dict[str, Counter[str]] = {job.spec.project: Counter() for job in snapshot.jobs.values()}
    for holder, keys in snapshot.holdings.items():
        if holder in snapshot.jobs:
            job = snapshot.jobs[holder]
            holders[job.spec.project][job.name] += len(keys)
    everybody = sum(own.total() for own in holders.values())
    return {project: _named_holders(own, everybody - own.total()) for project, own in holders.items()}


def _named_holders(own: Counter[str], others: int) -> str:
    most = nsmallest(NAMED, own.items(), key=lambda holder: (-holder[1], holder[0]))
    shown = [f"{name} ({slots})" for name, slots in most]
    if others:
        shown.append(f"other projects ({others})")
    return f"; held by {', '.join(shown)}" if shown else ""
