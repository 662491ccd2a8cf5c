"""Renting: one pass compares the rented machines, the machines wanted, and the lists of the providers.

Decisions are committed before a provider is called, and no provider is called inside a transaction. After an
interruption at any point, the next pass finds the outcome in the rows and in the provider's own list.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType

import structlog

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market, pool_name
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import PolicySetting, Snapshot
from service.domain.life.life import Launch
from service.domain.policies.framework.followed import following
from service.domain.policies.framework.policy import Policy
from service.domain.policies.registry import DEFAULT, Policies
from service.domain.rental.decisions.renting import decide_renting
from service.domain.rental.fleet import FleetPlan, Joined, Patience, cooling, given_back, reconcile
from service.domain.rental.machines import ENDED, Found, Machine, MachineState
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import (
    Fleet,
    Release,
    RentalRules,
    RentalTarget,
    RentalTargets,
    RentalTerms,
)
from service.domain.rental.spot.observations import REMEMBERED_H
from service.domain.rental.worth.startup import boot_times
from service.usecases.nodes.commands import set_schedulable
from service.usecases.nodes.expire import lose_node
from service.usecases.nodes.join import digest_token, machine_token, node_name_of
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.rental import JoinBy, Provider
from service.usecases.ports.transactions import Transaction, Transactions
from service.usecases.rental.market_limits import store_market_limits
from service.usecases.rental.offers import learned_offers
from service.usecases.rental.provider_calls import answered, ask_for, tell, terminate

log = structlog.get_logger()

_CALLS_AT_ONCE = 8
_REMEMBERED = timedelta(days=1)
_GAP = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting:
    """The settings of renting.

    `public_url` is the service as machines reach it. The join tokens of their agents are derived from
    `join_secret`.
    """

    providers: Sequence[Provider]
    rules: RentalRules
    patience: Patience
    public_url: str
    join_secret: str
    new_machine_id: Callable[[], str]
    policies: Policies

    def join_of(self, machine: Machine) -> JoinBy:
        """Return the information with which the machine's agent joins."""
        token = machine_token(self.join_secret, machine.id)
        return JoinBy(url=self.public_url, token=token, node_name=node_name_of(machine))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State that one pass hands to the next: when each machine was last known to exist, since when it has not
    been worth its price, and the last offers of each provider.

    Losing it delays decisions but never costs money.
    """

    seen: Mapping[str, datetime] = field(default_factory=dict)
    low_since: Mapping[str, datetime] = field(default_factory=dict)
    offers: Mapping[str, Sequence[Offer]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    """Machines of providers that are no longer configured."""
    held_back: str = ""
    """The reason why nothing more was rented although more would be worth its price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentResult:
    """The result of a pass. `unanswered` counts calls whose effect is unknown."""

    wanted: int
    launched: int
    not_launched: int
    terminated: int
    unanswered: int
    memory: Memory

    @property
    def did_something(self) -> bool:
        """Return True if the pass did anything."""
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
    """Run one pass. A failing provider does not affect the others."""
    plans: dict[str, FleetPlan] = {}
    due: set[str] = set()
    offers: dict[str, Sequence[Offer]] = {}
    for provider in renting.providers:
        listed = await answered(provider.name, provider.list())
        plans[provider.name] = await reconciled(
            transactions, renting, memory, provider, listed, launch, now()
        )
        due |= {one.machine_id for one in listed or () if one.needs_successor(now())}
        fresh = await answered(provider.name, provider.offers())
        offers[provider.name] = memory.offers.get(provider.name, ()) if fresh is None else fresh
    all_offers = [offer for name in sorted(offers) for offer in offers[name]]
    async with transactions.begin() as tx:
        unknown = _unknown(await tx.machines.open(), renting, memory)
        if not renting.providers:
            await tx.machines.drop_market_limits()
    targets, wanted = RentalTargets(), list[Machine]()
    if renting.providers:
        targets, wanted = await _wanted(transactions, renting, memory, all_offers, due, now, usd_per_slot_h)
    limit = asyncio.Semaphore(_CALLS_AT_ONCE)
    calls: list[Awaitable[str]] = []
    for provider in renting.providers:
        plan = plans[provider.name]
        launches = (*plan.launches, *(one for one in wanted if one.provider == provider.name))
        calls += [
            _limited(limit, ask_for(transactions, provider, machine, renting.join_of(machine), now))
            for machine in launches
        ]
        calls += [_limited(limit, terminate(provider, one)) for one in plan.terminations]
    done = await asyncio.gather(*calls)
    return RentResult(
        wanted=len(wanted),
        launched=done.count("launched"),
        not_launched=done.count("not launched"),
        terminated=done.count("terminated"),
        unanswered=done.count("unanswered"),
        memory=Memory(
            seen={machine: at for plan in plans.values() for machine, at in plan.seen.items()},
            low_since=targets.low_since,
            offers=offers,
            unknown=unknown,
            held_back=targets.held_back,
        ),
    )


async def _limited(limit: asyncio.Semaphore, call: Awaitable[str]) -> str:
    async with limit:
        return await call


async def reconciled(
    transactions: Transactions,
    renting: Renting,
    memory: Memory,
    provider: Provider,
    listed: Sequence[Found] | None,
    launch: Launch,
    now: datetime,
) -> FleetPlan:
    """Compare the machine rows with the provider's list, and commit the differences."""
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
                stale.add(
                    machine.id
                )  # it has joined meanwhile, or another process leads: the next pass decides again
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
    """Mark the node of an ended machine as LOST, regardless of its agent."""
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
    due: Collection[str],
    now: Callable[[], datetime],
    usd_per_slot_h: Mapping[str, float],
) -> tuple[RentalTargets, list[Machine]]:
    """Decide which machines to rent and to return, and commit the new rows.

    The machines `due` end soon as agreed: the decision is made as if jobs were leaving them already.
    """
    async with transactions.begin() as tx:
        snapshot = await tx.rounds.snapshot(now(), usd_per_slot_h)
        nodes = await tx.machines.joined()
        leases = await tx.machines.requested_since(now() - timedelta(hours=REMEMBERED_H))
        machines = await tx.machines.open()
    leaving = {node.node_id for machine, node in nodes.items() if machine in due}
    snapshot = replace(
        snapshot,
        nodes={
            id_: replace(node, state=NodeState.DRAINING) if id_ in leaving and node.keeps_jobs else node
            for id_, node in snapshot.nodes.items()
        },
    )
    fleet = Fleet(machines=machines, nodes={machine: node.node_id for machine, node in nodes.items()})
    # Solving is pure computation. It runs in a thread, so that the other loops go on.
    targets = await asyncio.to_thread(_rental_targets, snapshot, fleet, offers, leases, renting, memory)
    wanted = [_machine_of(target, renting, now()) for target in targets.rent]
    await store_market_limits(transactions, snapshot.market_limits, targets.market_limits, now())
    if wanted or targets.release:
        async with transactions.begin() as tx:
            await tx.machines.lock_decisions()
            known = {machine.id for machine in machines}
            if any(machine.id not in known for machine in await tx.machines.open()):
                return targets, []  # another process leads as well and has rented for the same jobs
            for machine in wanted:
                await tx.machines.insert(machine)
            for release in targets.release:
                await _return_machine(tx, release, now())
            tx.wake(WakeUp.ROUND)
    for machine in wanted:
        tell(machine)
    return targets, wanted


def _unknown(machines: Sequence[Machine], renting: Renting, memory: Memory) -> frozenset[str]:
    """Return the machines of providers that are no longer configured, and log each once.

    They still cost money.
    """
    names = {one.name for one in renting.providers}
    unknown = frozenset(one.id for one in machines if one.provider not in names)
    for machine in machines:
        if machine.id in unknown - memory.unknown:
            log.error("provider_missing", machine=machine.id, provider=machine.provider)
    return unknown


def _rental_targets(
    snapshot: Snapshot,
    fleet: Fleet,
    offers: Sequence[Offer],
    leases: Sequence[Machine],
    renting: Renting,
    memory: Memory,
) -> RentalTargets:
    offers = learned_offers(offers, leases, snapshot.now)
    hazard_per_h = {**_offered_hazards(offers), **snapshot.hazard_per_h}
    recent = [one for one in leases if one.requested_at >= snapshot.now - _REMEMBERED]

    def decide(setting: PolicySetting, policy: Policy) -> RentalTargets:
        decided_on = following(replace(snapshot, hazard_per_h=hazard_per_h, policy=setting), policy)
        terms = RentalTerms(
            rules=renting.rules,
            policy=policy,
            solve=partial(solve, gap=_GAP),
            cooling=cooling(recent, snapshot.now),
            low_since=memory.low_since,
            boot_s=boot_times(recent),
        )
        return decide_renting(decided_on, fleet, offers, terms)

    targets, failure = renting.policies.run(snapshot.policy, decide)
    if failure is not None:
        log.warning("policy_failed", policy=failure.policy, error=failure.problem, instead=DEFAULT)
    return targets


def _offered_hazards(offers: Sequence[Offer]) -> dict[str, float]:
    """Return the lowest hazard that providers state for each pool.

    It applies to pools without measurements.
    """
    hazards: dict[str, float] = {}
    for offer in offers:
        pool = pool_name(offer.device_kind, Market.SPOT)
        hazards[pool] = min(offer.hazard_per_h, hazards.get(pool, math.inf))
    return hazards


def _machine_of(target: RentalTarget, renting: Renting, now: datetime) -> Machine:
    machine_id = renting.new_machine_id()
    digest = digest_token(machine_token(renting.join_secret, machine_id))
    return target.machine(machine_id, join_token_sha256=digest, now=now)


async def _return_machine(tx: Transaction, release: Release, now: datetime) -> None:
    """Drain the node of a machine that is to be returned. The machine ends when its node is empty."""
    machine = await tx.machines.lock(release.machine_id)
    if machine.state is not MachineState.RUNNING:
        return
    machine = given_back(machine, release.reason, release.message, now)
    await tx.machines.save(machine)
    joined = (await tx.machines.joined()).get(machine.id)
    if joined is not None:
        await _drain(tx, joined)
    tell(machine)
