"""Why a job gets nothing: what is there, what is left of it, and what money allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headway.contract.agents import NodeState
from headway.contract.dollars import dollars
from headway.contract.jobs import Reason
from headway.contract.markets import Market
from service.domain.allocation.explain import Case
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.lending import standing_text, why_at_quota, why_given_up
from service.domain.allocation.notes import Note
from service.domain.allocation.round import Round
from service.domain.allocation.sentences import Sentence
from service.domain.arrays import IntArray
from service.domain.cluster import Cap, SlotKey, Snapshot
from service.domain.jobs import Job
from service.domain.policies.policy import Choices
from service.domain.pools import Pool, slots_of

_NAMED = 5
"""At most so many jobs are named in a sentence."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Census:
    """What the sentences of all jobs that wait have in common.

    Attributes:
        any_node: whether there is a node that is not lost.
        in_service: slots by pool of nodes that take jobs.
        left: of these, by pool, what the round gives to nobody.
        holders: slots by name of the job, by project.
        chosen: (J,) what every job gets.
        standings: by project, how it stands with its guarantee, for people.
        caps: each with the dollars per hour that jobs take of it.
        confined: how many slots are in quarantine, to be added to a sentence; empty where none is.
    """

    any_node: bool
    in_service: Mapping[Pool, int]
    left: Mapping[Pool, int]
    holders: Mapping[str, Mapping[str, int]]
    chosen: IntArray
    standings: Mapping[str, str]
    caps: tuple[tuple[Cap, float], ...]
    confined: str


def census_of(round_: Round, choices: Choices, left: Iterable[SlotKey]) -> Census:
    """The census of a round that leaves these slots over."""
    snapshot = round_.snapshot
    nodes = snapshot.nodes.values()
    return Census(
        any_node=any(node.state is not NodeState.LOST for node in nodes),
        in_service=Counter(
            snapshot.pool_on(node, kind) for node in nodes if node.takes_jobs for kind in node.slots.values()
        ),
        left=Counter(pool for pool in map(snapshot.pool_of, left) if pool is not None),
        holders=_holders(snapshot),
        chosen=choices.chosen,
        standings={project: standing_text(snapshot, project) for project in snapshot.projects},
        caps=tuple((cap, _taken(round_, choices, cap)) for cap in snapshot.caps),
        confined=_confined(sum(len(node.quarantined) for node in nodes if node.takes_jobs)),
    )


def _confined(slots: int) -> str:
    return f"; {slots_of(slots, None)} more in quarantine (`headway nodes`)" if slots else ""


def why_wait(case: Case, census: Census) -> Sentence:
    """Why a job gets nothing."""
    job, present = case.job, census.in_service
    if not census.any_node:
        return Sentence(
            Reason.WAITING_FOR_CAPACITY,
            "no node has joined the cluster; start one with `headway agent` or `headway up`",
        )
    kinds = {pool.kind for pool in present}
    wanted = job.spec.resources.devices or tuple(sorted(kinds))
    if wanted and not kinds & set(wanted):
        there = ", ".join(sorted(kinds)) or "none in service"
        return Sentence(
            Reason.NO_SUCH_DEVICE,
            f"no node in service has {' or '.join(wanted)}; there is: {there}{census.confined}",
        )
    if job.spec.image is not None and not any(pool.containers for pool in present if pool.kind in wanted):
        return Sentence(
            Reason.NO_CONTAINER_ENGINE,
            f"the job runs in an image, and no node in service with {' or '.join(wanted) or 'slots'} has a container engine; "
            "start Docker or Podman on one, and its agent again",
        )
    need = slots_of(min(job.sizes), None)
    serving = {pool: count for pool, count in present.items() if pool.serves(job.spec)}
    largest = max((_together(serving, pool.kind) for pool in serving), default=0)
    if min(job.sizes) > largest:
        return Sentence(
            Reason.WAITING_FOR_CAPACITY,
            f"needs at least {need} of one kind, and the nodes in service have {largest}"
            + _elsewhere(job, present)
            + census.confined,
        )
    at_quota = why_at_quota(case.round, case.row, census.chosen)
    if at_quota is not None:
        return at_quota
    left = {pool: count for pool, count in census.left.items() if pool.serves(job.spec)}
    if max((_together(left, pool.kind) for pool in left), default=0) >= min(job.sizes):
        unpaid = why_unpaid(case, census)
        if unpaid is not None:
            return unpaid
    return Sentence(
        Reason.WAITING_FOR_CAPACITY,
        f"needs at least {need}; {sum(left.values())} of {sum(serving.values())} are left"
        + _elsewhere(job, census.left)
        + _held_by(census.holders, job.spec.project)
        + _promised(case, census),
    )


def _promised(case: Case, census: Census) -> str:
    """What quotas have to do with it."""
    if case.given_up_for is not None:
        return f"; {why_given_up(case.given_up_for)}"
    stands = census.standings.get(case.job.spec.project, "")
    return f"; {stands}" if stands else ""


def _together(slots: Mapping[Pool, int], kind: str) -> int:
    """Slots of a kind on all markets that are there."""
    return sum(count for pool, count in slots.items() if pool.kind == kind)


def _elsewhere(job: Job, slots: Mapping[Pool, int]) -> str:
    """What would be there, and is on a market that the job does not take."""
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
    return f"; {slots_of(count, other)} would be there, and the job takes {job.spec.market} only (market)"


def why_unpaid(case: Case, census: Census) -> Sentence | None:
    """The cap that leaves too few dollars for the cheapest that the job could have; None: that is not why."""
    notes = case.round.notes[case.row]
    usd_per_h = case.round.columns.configurations.usd_per_h
    offered = usd_per_h[(notes == Note.OFFERED) | (notes == Note.CURRENT)]
    if not len(offered):
        return None
    least = float(offered.min())
    for cap, taken in census.caps:
        left = max(0.0, cap.usd_per_h - taken)
        if cap.project in {None, case.job.spec.project} and least > left + _ROUNDING:
            if cap.usd_per_h <= 0:
                message = f"budget {cap.name} is spent; `headway budget` says until when, or raise it"
                return Sentence(Reason.BUDGET, message)
            return Sentence(
                Reason.BUDGET,
                f"costs at least {dollars(least)} an hour, and of budget {cap.name} ({dollars(cap.usd_per_h)} an hour) "
                f"{dollars(left)} are left",
            )
    return None


def _taken(round_: Round, choices: Choices, cap: Cap) -> float:
    """Dollars per hour of all that the cap counts when the round is done."""
    row = next(one for one in round_.given.rows if one.name == cap.row)
    counts = choices.chosen != NOTHING
    if row.jobs is not None:
        counts &= row.jobs
    return cap.usd_per_h - row.capacity + float(np.sum(row.demand[choices.chosen[counts]]))


def _holders(snapshot: Snapshot) -> dict[str, Counter[str]]:
    holders: dict[str, Counter[str]] = {}
    for holder in snapshot.held.values():
        if holder in snapshot.jobs:
            job = snapshot.jobs[holder]
            holders.setdefault(job.spec.project, Counter())[job.name] += 1
    return holders


def _held_by(holders: Mapping[str, Mapping[str, int]], project: str) -> str:
    """Who holds most, for people of a project: its own jobs by name, those of others together."""
    own = sorted(holders.get(project, {}).items(), key=lambda holder: (-holder[1], holder[0]))
    shown = [f"{name} ({slots})" for name, slots in own[:_NAMED]]
    others = sum(sum(slots.values()) for one, slots in holders.items() if one != project)
    if others:
        shown.append(f"other projects ({others})")
    return f"; held by {', '.join(shown)}" if shown else ""
