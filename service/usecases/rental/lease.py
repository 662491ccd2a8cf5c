"""Leasing the machines of a plan for a job, at the request of a user."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from headway.contract.views.jobs import TERMINAL_STATES
from headway.contract.views.machines import LeaseRequest
from service.domain.cluster.snapshot import Cap
from service.domain.identity.access import Principal
from service.domain.jobs.job import Job
from service.domain.rental.budgets import caps_of
from service.domain.rental.candidates import Candidate
from service.domain.rental.decisions.leases import (
    WantedGroup,
    check_bounds,
    check_cost,
    leased_candidates,
    leased_machine,
)
from service.domain.rental.machines import Machine
from service.domain.rental.rental_targets import Fleet, RentalRules
from service.domain.rental.room import room_of
from service.domain.shared.errors import IdempotencyConflict, RentalRefused
from service.usecases.money.budget_state import budget_usages
from service.usecases.nodes.join import digest_token, machine_token
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.transactions import Transaction, Transactions
from service.usecases.rental.offers import OfferBook
from service.usecases.rental.provider_calls import tell


async def lease_machines(
    transactions: Transactions,
    book: OfferBook,
    request: LeaseRequest,
    *,
    job_id: str,
    caller: Principal,
    key: str,
    rules: RentalRules,
    join_secret: str,
    now: datetime,
) -> list[Machine]:
    """Store the leases of a plan for a job, and return them. The renting loop launches the machines.

    A repeated request with the same key returns the leases of the first one.

    Raises:
        NotFound: the job does not exist.
        InvalidField: a group is not on offer, or the cost of the plan is missing for a job with a cost limit.
        RentalRefused: the job has ended, or a price, a limit, its cost limit or a budget forbids the machines.
        IdempotencyConflict: the key was used for another job or for other machines.
    """
    catalogue = await book.catalogue(now)
    groups = [WantedGroup(**one.model_dump()) for one in request.groups]
    async with transactions.begin() as tx:
        await tx.machines.lock_decisions()
        job = await tx.jobs.lock(job_id)
        ids = _ids(caller, key, sum(one.machines for one in groups))
        known = await _known(tx, [*ids, *_ids(caller, key, len(ids) + 1)[-1:]], groups, job)
        if known:
            return known
        if job.state in TERMINAL_STATES:
            raise RentalRefused(f"{job.name} has ended, so no machines are leased for it.")
        wanted = leased_candidates(
            groups, catalogue.offers, providers=book.providers, max_usd_per_h=request.max_usd_per_h
        )
        check_cost(request.expected_cost_usd, await _left_usd(tx, job), job)
        await _check_bounds(tx, wanted, job, rules, now)
        machines = [
            leased_machine(
                one,
                machine_id=machine_id,
                job=job,
                by=caller.name,
                join_token_sha256=digest_token(machine_token(join_secret, machine_id)),
                now=now,
            )
            for machine_id, one in zip(ids, wanted, strict=True)
        ]
        for one in machines:
            await tx.machines.insert(one)
        tx.wake(WakeUp.ROUND)
    for one in machines:
        tell(one)
    return machines


def _ids(caller: Principal, key: str, count: int) -> list[str]:
    """Return the ids of the machines, equal for every repetition of a request."""
    source = "\n".join((caller.user_id or caller.token_id or caller.name, key))
    digest = hashlib.sha256(source.encode()).hexdigest()[:20]
    return [f"m{digest}{number:03}" for number in range(count)]


async def _known(
    tx: Transaction, ids: Sequence[str], groups: Sequence[WantedGroup], job: Job
) -> list[Machine]:
    """Return the machines of an earlier request with the same key; none if there was no such request."""
    found = {
        one.id: one
        for group in {one.provider for one in groups}
        for one in await tx.machines.known(group, ids)
    }
    if not found:
        return []
    machines = [found[one] for one in ids if one in found]
    wanted = [(one.provider, one.instance_type, one.market) for one in groups for _ in range(one.machines)]
    same = [(one.provider, one.instance_type, one.market) for one in machines]
    if same != wanted or any(one.job_id != job.id for one in machines):
        raise IdempotencyConflict("this Idempotency-Key was used for other machines; use a new key.")
    return machines


async def _left_usd(tx: Transaction, job: Job) -> float | None:
    """Return the dollars that the job may still spend; None without a limit."""
    cost = (await tx.job_queries.job(job.id)).cost
    return job.spec.goal.max_cost_usd if cost is None else cost.left_usd


async def _check_bounds(
    tx: Transaction, wanted: Sequence[Candidate], job: Job, rules: RentalRules, now: datetime
) -> None:
    usages = await budget_usages(tx.spending, now, lambda one: one.hard)
    spent = {budget.name: usage.usd_per_h for budget, usage in usages}
    caps: list[tuple[Cap, float]] = [(one, spent[one.name]) for one in caps_of(usages)]
    fleet = Fleet(machines=await tx.machines.open(), nodes={})
    room = room_of([cap for cap, _ in caps], fleet, rules)
    check_bounds(wanted, room, caps, job)
