"""A round: a snapshot, a decision, a guarded apply, and a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from headway.contract.agents import NodeState
from service.domain.allocation.decision.plan import Action, Plan, decide
from service.domain.allocation.inputs.policy_state import advanced
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import PolicySetting, Snapshot
from service.domain.cluster.stragglers import without_stragglers
from service.domain.life.life import Launch
from service.domain.policies.framework.checked import PolicyFailed
from service.domain.policies.framework.followed import following
from service.domain.policies.framework.policy import Policy
from service.domain.policies.registry import POLICIES, Policies
from service.garbage import paused_collector
from service.usecases.nodes.commands import finish_drain
from service.usecases.ports.facts import Decided, PolicyReplaced
from service.usecases.ports.transactions import Transactions
from service.usecases.rounds.apply import apply_plan
from service.usecases.rounds.views import round_view

EXACT_UP_TO = 100
"""Maximum number of jobs that a round solves exactly. Beyond it, `GAP` is allowed."""
GAP = 1e-3


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of a round. `stale` counts decisions that were dropped because their job had changed.

    `failure` is the failure of the chosen policy, in whose place the default policy decided.
    """

    applied: int
    stale: int
    waiting: int
    drained: int
    gap: float
    failure: PolicyFailed | None = None

    @property
    def did_something(self) -> bool:
        """Return True if the round changed or dropped anything."""
        return bool(self.applied or self.stale or self.drained)


async def run_round(
    transactions: Transactions,
    launch: Launch,
    *,
    round_id: str,
    now: datetime,
    clock_s: Callable[[], float],
    usd_per_slot_h: Mapping[str, float] = MappingProxyType({}),
    policies: Policies = POLICIES,
) -> RoundResult:
    """Decide on one snapshot of the cluster, then apply each decision whose job has not changed.

    The record is stored last. An interrupted round has no record, and the next round decides anew.

    `clock_s` measures the duration of the steps. `usd_per_slot_h` are prices by device kind.
    """
    began_s = clock_s()
    async with transactions.begin() as tx:
        snapshot = without_stragglers(await tx.rounds.snapshot(now, usd_per_slot_h))
    # Solving is pure computation. It runs in a thread, so that the other loops go on.
    with paused_collector():
        (plan, state, times), failure = await asyncio.to_thread(_decide, snapshot, policies, clock_s)
    changes, told = await apply_plan(
        transactions, snapshot, plan, launch, round_id, lambda: now + timedelta(seconds=clock_s() - began_s)
    )
    async with transactions.begin() as tx:
        await tx.rounds.store_decisions(told, round_id, now)
        if plan.decisions:
            times = {**times, **plan.times, "took_s": clock_s() - began_s}
            view = round_view(plan, changes, round_id=round_id, times=times)
            await tx.rounds.store_round(view)
            tx.tell(Decided(view))
        if failure is not None:
            # The state of the failed policy stays as it is.
            tx.tell(PolicyReplaced(failure.policy))
        elif state != snapshot.policy_state:
            await tx.rounds.carry_over(snapshot.policy, state, now)
    drained = []
    for node in snapshot.nodes.values():
        if node.state is NodeState.DRAINING:
            # In a transaction without jobs: a report locks its node first, and jobs after it.
            async with transactions.begin() as tx:
                if await finish_drain(tx, node.id):
                    drained.append(node.name)
    waiting = sum(decision.action is Action.WAIT for decision in plan.decisions)
    return RoundResult(
        len(changes), len(plan.changes) - len(changes), waiting, len(drained), plan.solution.gap, failure
    )


_Decided = tuple[Plan, Mapping[str, Any], Mapping[str, float]]


def _decide(
    snapshot: Snapshot, policies: Policies, clock_s: Callable[[], float]
) -> tuple[_Decided, PolicyFailed | None]:
    """Return the plan, the policy's state for the next round, and the seconds of the preparation.

    If the chosen policy failed, the default policy has decided, and the second result is the failure.
    """

    def decide_with(setting: PolicySetting, policy: Policy) -> _Decided:
        began_s = clock_s()
        round_ = build_round(following(replace(snapshot, policy=setting), policy))
        built_s = clock_s()
        follows, state = advanced(policy, round_)
        gap = 0.0 if len(round_.jobs) <= EXACT_UP_TO else GAP
        plan = decide(round_, follows, partial(solve, gap=gap), clock_s=clock_s)
        return plan, state, {"tables_s": built_s - began_s}

    return policies.run(snapshot.policy, decide_with)
