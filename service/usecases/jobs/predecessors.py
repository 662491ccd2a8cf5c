"""The jobs that a new job waits for, as its job file names them."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.spec import JobSpec
from service.domain.jobs.after import Chance, Predecessor, judge
from service.domain.shared.errors import InvalidField
from service.usecases.ports.transactions import Transaction


async def predecessors_of(tx: Transaction, spec: JobSpec) -> list[Predecessor]:
    """Return the jobs that a new job waits for.

    They exist before it, so no chain can be a circle.

    Raises:
        InvalidField: a name is unknown or means the job itself, two entries mean one job, or a job has already ended in
            another way than wanted.
    """
    if not spec.after:
        return []
    found = await tx.chains.find(spec.project, [one.job for one in spec.after])
    chosen: list[Predecessor] = []
    for number, one in enumerate(spec.after):
        where = f"after.{number}.job"
        known = found.get(one.job)
        if known is None and one.job == spec.name:
            raise InvalidField(where, f"{one.job} is this job itself, and a job cannot wait for its own end")
        if known is None:
            raise InvalidField(
                where,
                f"no job of project {spec.project} has the id or name {one.job!r}; submit that job first, or leave it out",
            )
        twin = next((other.key for other in chosen if other.id == known.id), None)
        if twin is not None:
            raise InvalidField(where, f"{one.job} and {twin} are the same job; leave one of them out")
        chosen.append(replace(known, on=one.on, files=one.files))
    verdict = judge(chosen)
    if verdict.chance is Chance.NEVER:
        raise InvalidField(
            "after", f"the job could never start: it {verdict.message}; run that job again, or change `on`"
        )
    return chosen
