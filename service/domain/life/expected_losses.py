"""The losses that a job's ranks are told to expect. Their checkpoint interval follows them.

Every start and every order of members carries the rate of the machines that the job then holds. When the rate
changes while these stay, such as by interruptions in the zone, the present order is repeated with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headway.contract.run_facts import LossRate, ProgressSource
from headway.contract.values.markets import Market, pool_name
from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import Snapshot
from service.domain.cluster.spot_rate import FAILURES_PER_H, TOGETHER, checkpoint_losses_per_h
from service.domain.jobs.copies import keeps_every_part
from service.domain.jobs.first_step import has_begun
from service.domain.jobs.job import Job
from service.domain.jobs.membership import Members, nodes_of
from service.domain.life.life import Life

CHANGED: Final = 1.5
"""Factor by which the rate must change before ranks hear of it. An interval for the old rate then costs at most
2 % more than the best one.
"""


def machine_losses_per_h(
    kinds: Iterable[str], market: Market, hazard_per_h: Mapping[str, float], own_per_h: float | None = None
) -> float:
    """Return the losses per hour of a machine with these device kinds: its failures and its interruptions.

    `hazard_per_h` has the interruptions per hour by the name of the pool, `own_per_h` those of the machine's
    place, if it was rented.
    """
    interruptions = (hazard_per_h.get(pool_name(kind, market), 0.0) for kind in kinds)
    return FAILURES_PER_H + (max(interruptions, default=0.0) if own_per_h is None else own_per_h)


def losses_of_members(life: Life, members: Members) -> LossRate | None:
    """Return the rate for the machines of these members; None if the job file fixes the interval."""
    if life.job.spec.checkpoint.every != "auto":
        return None
    job, switch = life.job, life.job.switch
    hosts = {node: life.loaded_footprint.hosts[node] for node in nodes_of(members)}
    ranks = Counter(one.node_id for one in members)
    machines = [(host.losses_per_h, ranks[node]) for node, host in hosts.items()]
    mesh = job.progress.mesh if switch is None else switch.mesh
    per_h = _losses_per_h(job, mesh, machines, [one.together for one in hosts.values()])
    return LossRate(per_h=per_h, at=life.now)


def with_losses(life: Life, losses: LossRate | None) -> Life:
    """Return the life with the rate that its ranks are told."""
    job = life.job
    return life.with_job(replace(job, progress=job.progress.model_copy(update={"losses": losses})))


def has_other_losses(job: Job, snapshot: Snapshot) -> bool:
    """Return True if the ranks of a job that keeps its machines must hear of another rate."""
    if not _listens(job):
        return False
    nodes = [
        (snapshot.nodes[node], len(slots)) for node, slots in job.allocation.items() if node in snapshot.nodes
    ]
    if len(nodes) < len(job.allocation):
        return False  # a node is gone, and a report about it follows
    hazards = snapshot.hazard_per_h
    machines = [
        (machine_losses_per_h(set(one.slots.values()), one.market, hazards, one.hazard_per_h), ranks)
        for one, ranks in nodes
    ]
    sent = job.progress.losses
    together = [one.together for one, _ in nodes if one.together is not None]
    now_per_h = _losses_per_h(job, job.progress.mesh, machines, together)
    return sent is None or not sent.per_h / CHANGED <= now_per_h <= sent.per_h * CHANGED


def _listens(job: Job) -> bool:
    """Return True if training ranks of the library choose the interval, and no change is under way."""
    return (
        job.state is JobState.RUNNING
        and job.switch is None
        and job.spec.checkpoint.every == "auto"
        and job.progress.source is ProgressSource.LIBRARY
        and has_begun(job)
    )


def _losses_per_h(
    job: Job, mesh: str | None, machines: Sequence[tuple[float, int]], together: Sequence[float]
) -> float:
    """Return the losses per hour after which a job on this mesh returns to its checkpoint.

    `machines` has the losses per hour and the number of ranks of each machine, which count as consecutive ranks.
    """
    losses, size = [per_h for per_h, _ in machines], sum(ranks for _, ranks in machines)
    in_place = job.live or (job.follows_orders and not has_begun(job))
    fatal = [
        per_h
        for per_h, ranks in machines
        if ranks < size and not keeps_every_part(job, mesh, range(ranks, size), size)
    ]
    if in_place and fatal:
        return sum(fatal)
    return checkpoint_losses_per_h(losses, in_place=in_place, together=min(together, default=TOGETHER))
