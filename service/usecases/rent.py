"""Machines come and go: one pass over what is rented, what should be, and what providers say.

What is decided is committed before a provider is asked, and no provider is asked inside a transaction. So wherever this
ends, the next pass finds out what came of it, from the rows and from the provider's own list.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType

import structlog

from headway.contract.agents import NodeState
from headway.contract.markets import Market, pool_name
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster import Snapshot
from service.domain.rental.autoscale import decide_wants
from service.domain.rental.fleet import (
    FleetPlan,
    Joined,
    Patience,
    cooling,
    given_back,
    reconcile,
)
from service.domain.rental.machines import ENDED, Found, Machine, MachineReason, MachineState
from service.domain.rental.offers import Offer
from service.domain.rental.wants import Fleet, Release, Rules, Want, Wants
from service.usecases.expire import lose_node
from service.usecases.join import digest_token, machine_token, node_name_of
from service.usecases.nodes import set_schedulable
from service.usecases.orders import Launch
from service.usecases.ports import Transaction, Transactions
from service.usecases.provider_calls import answered, ask_for, tell, terminate
from service.usecases.records import Bell
from service.usecases.rental_ports import JoinBy, Provider
from service.usecases.schedule import chosen_policy

log = structlog.get_logger()

_CALLS_AT_ONCE = 8
_REMEMBERED = timedelta(days=1)
_GAP = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting:
    """What renting needs. `public_url` is the service as machines reach it; what their agents join with follows from
    `join_secret`.
    """

    providers: Sequence[Provider]
    rules: Rules
    patience: Patience
    public_url: str
    join_secret: str
    new_machine_id: Callable[[], str]

    def join_of(self, machine: Machine) -> JoinBy:
        """How the machine's agent joins."""
        token = machine_token(self.join_secret, machine.id)
        return JoinBy(url=self.public_url, token=token, node_name=node_name_of(machine))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What one pass leaves to the next: when each machine was last known to exist, since when it has not been worth its
    price, and the last offers of each provider. Losing it costs patience, never money.
    """

    seen: Mapping[str, datetime] = field(default_factory=dict)
    low_since: Mapping[str, datetime] = field(default_factory=dict)
    offers: Mapping[str, Sequence[Offer]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    """Machines of providers that are not asked any more."""
    held_back: str = ""
    """Why nothing more was rented, where something would be worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentResult:
    """What a pass did. `unanswered` are calls of which nobody knows whether they came through."""

    wanted: int
    launched: int
    not_launched: int
    terminated: int
    unanswered: int
    memory: Memory

    @property
    def did_something(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.wanted or self.launched or self.not_launched or self.terminated or self.unanswered)


async def rent(
    transactions: Transactions,
    renting: Renting,
    memory: Memory,
    launch: Launch,
    *,
    now: Callable[[], datetime],
    usd_per_slot_h: Mapping[str, float] = MappingProxyType({}),
) -> RentResult:
    """One pass. Whatever a provider does, the others are served."""
    plans: dict[str, FleetPlan] = {}
    offers: dict[str, Sequence[Offer]] = {}
    for provider in renting.providers:
        listed = await answered(provider.name, provider.list())
        plans[provider.name] = await _reconciled(
            transactions, renting, memory, provider, listed, launch, now()
        )
        fresh = await answered(provider.name, provider.offers())
        offers[provider.name] = memory.offers.get(provider.name, ()) if fresh is None else fresh
    there = [offer for name in sorted(offers) for offer in offers[name]]
    async with transactions.begin() as tx:
        unknown = _unknown(await tx.machines.open(), renting, memory)
    wants, wanted = Wants(), list[Machine]()
    if renting.providers:
        wants, wanted = await _wanted(transactions, renting, memory, there, now, usd_per_slot_h)
    limit = asyncio.Semaphore(_CALLS_AT_ONCE)
    calls: list[Awaitable[str]] = []
    for provider in renting.providers:
        plan = plans[provider.name]
        launches = (*plan.launches, *(one for one in wanted if one.provider == provider.name))
        calls += [
            _in_turn(limit, ask_for(transactions, provider, machine, renting.join_of(machine), now))
            for machine in launches
        ]
        calls += [_in_turn(limit, terminate(provider, one)) for one in plan.terminations]
    done = await asyncio.gather(*calls)
    return RentResult(
        wanted=len(wanted),
        launched=done.count("launched"),
        not_launched=done.count("not launched"),
        terminated=done.count("terminated"),
        unanswered=done.count("unanswered"),
        memory=Memory(
            seen={machine: at for plan in plans.values() for machine, at in plan.seen.items()},
            low_since=wants.low_since,
            offers=offers,
            unknown=unknown,
            held_back=wants.held_back,
        ),
    )


async def _in_turn(limit: asyncio.Semaphore, call: Awaitable[str]) -> str:
    async with limit:
        return await call


async def _reconciled(
    transactions: Transactions,
    renting: Renting,
    memory: Memory,
    provider: Provider,
    listed: Sequence[Found] | None,
    launch: Launch,
    now: datetime,
) -> FleetPlan:
    """What we believe, held against the provider's list; committed."""
    names = {name for one in listed or () for name in (one.machine_id, one.external_id)}
    async with transactions.begin() as tx:
        rows = {
            one.id: one for one in (*await tx.machines.open(), *await tx.machines.known(provider.name, names))
        }
        machines = [one for one in rows.values() if one.provider == provider.name]
        nodes = await tx.machines.joined()
    plan = reconcile(machines, listed, nodes, memory.seen, now, renting.patience)
    stale: set[str | None] = set()
    for machine in plan.changed:
        async with transactions.begin() as tx:
            if await tx.machines.lock(machine.id) != rows[machine.id]:
                stale.add(machine.id)  # it has joined meanwhile, or somebody else leads: the next pass sees
                continue
            await tx.machines.save(machine)
            await _end_node(tx, machine, nodes.get(machine.id), launch, now)
        tell(machine)
    for machine in plan.found:
        async with transactions.begin() as tx:
            await tx.machines.insert(machine)
        tell(machine)
    for machine in (one for one in plan.drains if one.id not in stale):
        async with transactions.begin() as tx:
            await _drain(tx, nodes[machine.id])
    for orphan in plan.terminations:
        if orphan.machine_id is None:
            log.warning("orphan", provider=provider.name, external_id=orphan.external_id)
    return replace(
        plan,
        launches=tuple(one for one in plan.launches if one.id not in stale),
        terminations=tuple(one for one in plan.terminations if one.machine_id not in stale),
    )


async def _end_node(
    tx: Transaction, machine: Machine, joined: Joined | None, launch: Launch, now: datetime
) -> None:
    """What ran on a machine that is gone has ended, whatever its agent would say."""
    if machine.state not in ENDED or joined is None or joined.state is NodeState.LOST:
        return
    node = await tx.nodes.lock(joined.node_id)
    await lose_node(tx, node, launch, now, f"the machine of {node.name} is gone: {machine.message}")


async def _drain(tx: Transaction, joined: Joined) -> None:
    node = await tx.nodes.lock(joined.node_id)
    if node.state in {NodeState.READY, NodeState.CORDONED}:
        await set_schedulable(tx, node.id, NodeState.DRAINING)


async def _wanted(
    transactions: Transactions,
    renting: Renting,
    memory: Memory,
    offers: Sequence[Offer],
    now: Callable[[], datetime],
    usd_per_slot_h: Mapping[str, float],
) -> tuple[Wants, list[Machine]]:
    """What to rent and to give back, with the new rows; committed."""
    async with transactions.begin() as tx:
        snapshot = await tx.decisions.snapshot(now(), usd_per_slot_h)
        nodes = await tx.machines.joined()
        recent = await tx.machines.requested_since(now() - _REMEMBERED)
        machines = await tx.machines.open()
    fleet = Fleet(machines=machines, nodes={machine: node.node_id for machine, node in nodes.items()})
    # Solving is pure computation: in a thread, so that the other loops go on.
    wants = await asyncio.to_thread(_decided, snapshot, fleet, offers, recent, renting.rules, memory)
    wanted = [_machine_of(want, renting, now()) for want in wants.rent]
    if wanted or wants.release:
        async with transactions.begin() as tx:
            await tx.machines.take_turn()
            known = {machine.id for machine in machines}
            if any(machine.id not in known for machine in await tx.machines.open()):
                return wants, []  # somebody else leads as well, and has rented for the same jobs
            for machine in wanted:
                await tx.machines.insert(machine)
            for release in wants.release:
                await _give_back(tx, release, now())
            tx.ring(Bell.ROUND)
    for machine in wanted:
        tell(machine)
    return wants, wanted


def _unknown(machines: Sequence[Machine], renting: Renting, memory: Memory) -> frozenset[str]:
    """Machines of providers that are not asked any more: they go on costing. Said once."""
    names = {one.name for one in renting.providers}
    unknown = frozenset(one.id for one in machines if one.provider not in names)
    for machine in machines:
        if machine.id in unknown - memory.unknown:
            log.error("provider_missing", machine=machine.id, provider=machine.provider)
    return unknown


def _decided(
    snapshot: Snapshot,
    fleet: Fleet,
    offers: Sequence[Offer],
    recent: Sequence[Machine],
    rules: Rules,
    memory: Memory,
) -> Wants:
    return decide_wants(
        replace(snapshot, hazard_per_h={**_offered_hazards(offers), **snapshot.hazard_per_h}),
        fleet,
        offers,
        cooling=cooling(recent, snapshot.now),
        rules=rules,
        policy=chosen_policy(snapshot.policy),
        solve=partial(solve, gap=_GAP),
        low_since=memory.low_since,
    )


def _offered_hazards(offers: Sequence[Offer]) -> dict[str, float]:
    """By pool what providers say of it, for pools that nothing is known of yet: the safest offer's."""
    hazards: dict[str, float] = {}
    for offer in offers:
        pool = pool_name(offer.device_kind, Market.SPOT)
        hazards[pool] = min(offer.hazard_per_h, hazards.get(pool, math.inf))
    return hazards


def _machine_of(want: Want, renting: Renting, now: datetime) -> Machine:
    offer, machine_id = want.offer, renting.new_machine_id()
    return Machine(
        id=machine_id,
        provider=offer.provider,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        device_kind=offer.device_kind,
        slots=offer.devices,
        market=want.market,
        usd_per_h=want.usd_per_h,
        state=MachineState.WANTED,
        reason=MachineReason.WORTH_IT,
        message=want.message,
        join_token_sha256=digest_token(machine_token(renting.join_secret, machine_id)),
        requested_at=now,
        state_since=now,
        min_billed_s=offer.min_billed_s,
    )


async def _give_back(tx: Transaction, release: Release, now: datetime) -> None:
    """Its node takes no new jobs from now on; the machine goes when it is empty."""
    machine = await tx.machines.lock(release.machine_id)
    if machine.state is not MachineState.RUNNING:
        return
    machine = given_back(machine, release.reason, release.message, now)
    await tx.machines.save(machine)
    joined = (await tx.machines.joined()).get(machine.id)
    if joined is not None:
        await _drain(tx, joined)
    tell(machine)
