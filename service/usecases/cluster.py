"""The cluster as a whole: what there is of it, and the policy that it follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.decisions import ClusterView, KindView, PolicyParameter, PolicyRequest, PolicyView
from headway.contract.markets import Market
from service.domain.cluster import PolicySetting
from service.domain.policies.registry import Parameter, describe, policy
from service.usecases.ports import Transaction
from service.usecases.records import Bell, SlotCount


async def view_cluster(
    tx: Transaction, usd_per_slot_h: Mapping[str, float], *, seen: frozenset[str] | None
) -> ClusterView:
    """The cluster in numbers, its policy, and those that it could follow. Jobs are those of the projects that are `seen` (None:
    all are).
    """
    setting = await tx.cluster_settings.policy()
    counts = await tx.decision_queries.slots()
    return ClusterView(
        nodes=await tx.decision_queries.nodes(),
        kinds=kinds_of(counts, usd_per_slot_h),
        jobs=await tx.decision_queries.live_jobs(seen=seen),
        usd_per_h=sum(
            one.held * _price(one, usd_per_slot_h) for one in counts if one.node_state is not NodeState.LOST
        ),
        policy=setting.name,
        parameters=dict(setting.parameters),
        policies=[
            PolicyView(
                name=one.name, summary=one.sentence, parameters=[_parameter(each) for each in one.parameters]
            )
            for one in describe()
        ],
    )


def kinds_of(counts: Sequence[SlotCount], usd_per_slot_h: Mapping[str, float]) -> list[KindView]:
    """The slots of each kind and market, those of nodes that are LOST left out."""
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
    """Dollars per hour of one of these slots."""
    return usd_per_slot_h.get(one.device_kind, 0.0) if one.usd_per_slot_h is None else one.usd_per_slot_h


def _parameter(one: Parameter) -> PolicyParameter:
    default = list(one.default) if isinstance(one.default, tuple) else one.default
    return PolicyParameter(name=one.name, default=default, meaning=one.meaning, interval=one.interval)


async def choose_policy(tx: Transaction, request: PolicyRequest, now: datetime) -> PolicySetting:
    """Have the cluster follow another policy from the next round on.

    Raises:
        InvalidField: there is no such policy or parameter, or its value makes no sense.
    """
    policy(request.policy, request.parameters)
    setting = PolicySetting(request.policy, request.parameters)
    await tx.cluster_settings.choose_policy(setting, now)
    tx.ring(Bell.ROUND)
    return setting
