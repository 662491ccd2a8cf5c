"""The processes of a job."""

from __future__ import annotations

from headway.contract.orders import member_id
from headway.contract.views.jobs import Page
from headway.contract.views.ranks import RankView
from service.domain.jobs.membership import living
from service.domain.life.life import crew_of
from service.usecases.jobs.life import load_generations
from service.usecases.ports.transactions import Transaction


async def list_ranks(tx: Transaction, job_id: str) -> Page[RankView]:
    """Return the processes of the job that have not ended, as far as agents have reported, by rank.

    The job is locked, so that its members, slots and ended processes belong together.
    """
    job = await tx.jobs.lock(job_id)
    crew = crew_of(job, await load_generations(tx, job))
    oldest = min((one.born_generation for one in (*crew.running, *crew.coming)), default=job.generation)
    found = living(crew, await tx.grants.held(job.id), await tx.jobs.exits(job.id, oldest))
    nodes = await tx.nodes.many(sorted({one.node_id for one, _ in found}))
    return Page(
        items=[
            RankView(
                rank=one.rank,
                member=member_id(one.born_generation, one.born_rank),
                node=nodes[one.node_id].name if one.node_id in nodes else one.node_id,
                slot=one.slot,
                pid=one.pid,
                part=part,
            )
            for one, part in found
        ]
    )
