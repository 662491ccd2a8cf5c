"""The state of the cluster as a whole, and the choice of its policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.decisions import ClusterView, KindView, PolicyParameter, PolicyRequest, PolicyView
from service.domain.cluster.snapshot import PolicySetting
from service.domain.policies.registry import ParameterDescription, Policies
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.rounds import SlotCount
from service.usecases.ports.transactions import Transaction


async def view_cluster(
    tx: Transaction, policies: Policies, usd_per_slot_h: Mapping[str, float], *, seen: frozenset[str] | None
) -> ClusterView:
    """Return figures of the cluster, its policy, and all available policies.

    Jobs are those of the projects in `seen` (None: all).
    """
    setting = await tx.rounds.policy()
    counts = await tx.round_queries.slots()
    return ClusterView(
        nodes=await tx.round_queries.nodes(),
        kinds=kinds_of(counts, usd_per_slot_h),
        jobs=await tx.round_queries.live_jobs(seen=seen),
        usd_per_h=sum(
            one.held * _price(one, usd_per_slot_h) for one in counts if one.node_state is not NodeState.LOST
        ),
        policy=setting.name,
        parameters=dict(setting.parameters),
        policies=[
            PolicyView(
                name=one.name, summary=one.sentence, parameters=[_parameter(each) for each in one.parameters]
            )
            for one in policies.describe()
        ],
    )


def kinds_of(counts: Sequence[SlotCount], usd_per_slot_h: Mapping[str, float]) -> list[KindView]:
    """Return the slots of each device kind and market, without those of LOST nodes."""
    pools: dict[tuple[str, Market], list[SlotCount]] = {}
    for one in counts:
        if one.node_state is not NodeState.LOST and one.slots:
            pools.setdefault((one.device_kind, one.market), []).append(one)
    views = []
    for (kind, market), present in sorted(pools.items()):
        ready = [one for one in present if one.node_state is NodeState.READY]
        slots = sum(one.slots for one in present)
        views.append(
            KindView(
                device_kind=kind,
                market=market,
                slots=slots,
                in_service=sum(one.slots for one in ready),
                held=sum(one.held for one in present),
                free=sum(one.slots - one.held for one in ready),
                usd_per_slot_h=sum(one.slots * _price(one, usd_per_slot_h) for one in present) / slots,
            )
        )
    return views


def _price(one: SlotCount, usd_per_slot_h: Mapping[str, float]) -> float:
    """Return the price of one of these slots in dollars per hour."""
    return usd_per_slot_h.get(one.device_kind, 0.0) if one.usd_per_slot_h is None else one.usd_per_slot_h


def _parameter(one: ParameterDescription) -> PolicyParameter:
    default = list(one.default) if isinstance(one.default, tuple) else one.default
    return PolicyParameter(name=one.name, default=default, meaning=one.meaning, interval=one.interval)


async def choose_policy(
    tx: Transaction, policies: Policies, request: PolicyRequest, now: datetime
) -> PolicySetting:
    """Choose the policy of the cluster from the next round on.

    Raises:
        InvalidField: there is no such policy or parameter, or its value is invalid.
    """
    policies.policy(request.policy, request.parameters)
    setting = PolicySetting(request.policy, request.parameters)
    await tx.rounds.choose_policy(setting, now)
    tx.wake(WakeUp.ROUND)
    return setting
