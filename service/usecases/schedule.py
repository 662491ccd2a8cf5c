"""One round: a snapshot, a decision, a guarded apply, and the record of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from headway.contract.agents import NodeState
from service.domain.allocation.knapsack.solver import solve
from service.domain.allocation.plan import Action, Plan, decide
from service.domain.allocation.round import build_round
from service.domain.allocation.steering import steered
from service.domain.cluster import PolicySetting, Snapshot
from service.domain.errors import InvalidField
from service.domain.policies.policy import Policy
from service.domain.policies.registry import DEFAULT, policy
from service.usecases.apply import apply_plan
from service.usecases.facts import Decided
from service.usecases.nodes import finish_drain
from service.usecases.orders import Launch
from service.usecases.ports import Transactions
from service.usecases.round_views import round_view

EXACT_UP_TO = 100
"""Jobs: so many are decided about without a gap."""
GAP = 1e-3


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round did. `stale` decisions met a job that had changed meanwhile, and were dropped."""

    applied: int
    stale: int
    waiting: int
    drained: int
    gap: float

    @property
    def did_something(self) -> bool:
        """Whether anything changed."""
        return bool(self.applied or self.stale or self.drained)


async def run_round(
    transactions: Transactions,
    launch: Launch,
    *,
    round_id: str,
    now: datetime,
    clock_s: Callable[[], float],
    usd_per_slot_h: Mapping[str, float] = MappingProxyType({}),
) -> RoundResult:
    """Decide on one picture of the cluster, then apply each decision if its job is still the same. What was done is recorded
    last: of a round that ends in the middle there is no record, and the next one decides anew.

    `clock_s` measures how long the parts of the decision take; `usd_per_slot_h` are prices by device kind.
    """
    began_s = clock_s()
    async with transactions.begin() as tx:
        snapshot = await tx.decisions.snapshot(now, usd_per_slot_h)
    # Solving is pure computation: in a thread, so that the other loops go on.
    plan, state, times = await asyncio.to_thread(_think, snapshot, clock_s)
    changes, told = await apply_plan(
        transactions, snapshot, plan, launch, round_id, lambda: now + timedelta(seconds=clock_s() - began_s)
    )
    async with transactions.begin() as tx:
        await tx.decisions.store(told, round_id, now)
        if plan.decisions:
            times = {**times, **plan.times, "took_s": clock_s() - began_s}
            view = round_view(plan, changes, round_id=round_id, times=times)
            await tx.decisions.record_round(view)
            tx.tell(Decided(view))
        if state != snapshot.policy_state:
            await tx.cluster_settings.carry_over(snapshot.policy, state, now)
    drained = []
    for node in snapshot.nodes.values():
        if node.state is NodeState.DRAINING:
            # Apart from the jobs: a report locks its node first and jobs then.
            async with transactions.begin() as tx:
                if await finish_drain(tx, node.id):
                    drained.append(node.name)
    waiting = sum(decision.action is Action.WAIT for decision in plan.decisions)
    return RoundResult(
        len(changes), len(plan.changes) - len(changes), waiting, len(drained), plan.solution.gap
    )


def _think(
    snapshot: Snapshot, clock_s: Callable[[], float]
) -> tuple[Plan, Mapping[str, Any], Mapping[str, float]]:
    """The plan, what the policy carries over to the next round, and the seconds that went before."""
    began_s = clock_s()
    round_ = build_round(snapshot)
    built_s = clock_s()
    follows, state = steered(chosen_policy(snapshot.policy), round_)
    gap = 0.0 if len(round_.jobs) <= EXACT_UP_TO else GAP
    plan = decide(round_, follows, partial(solve, gap=gap), clock_s=clock_s)
    return plan, state, {"tables_s": built_s - began_s}


def chosen_policy(setting: PolicySetting) -> Policy:
    """The policy of the cluster; the default where the setting is one that this version does not know."""
    try:
        return policy(setting.name, setting.parameters)
    except InvalidField:
        return policy(DEFAULT)
