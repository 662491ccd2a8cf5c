"""The cluster as a whole: what there is of it, and the policy that it follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from headway.contract.agents import NodeState
from headway.contract.decisions import ClusterView, KindView, PolicyParameter, PolicyRequest, PolicyView
from service.domain.cluster import PolicySetting
from service.domain.policies.registry import Parameter, describe, policy
from service.usecases.ports import Transaction
from service.usecases.records import Bell, SlotCount


async def view_cluster(tx: Transaction, usd_per_slot_h: Mapping[str, float]) -> ClusterView:
    """The cluster in numbers, its policy, and those that it could follow."""
    setting = await tx.cluster_settings.policy()
    kinds = kinds_of(await tx.decision_queries.slots(), usd_per_slot_h)
    return ClusterView(
        nodes=await tx.decision_queries.nodes(),
        kinds=kinds,
        jobs=await tx.decision_queries.live_jobs(),
        usd_per_h=sum(kind.held * kind.usd_per_slot_h for kind in kinds),
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
    """The slots of each kind, those of nodes that are LOST left out."""
    present = [one for one in counts if one.node_state is not NodeState.LOST]
    ready = [one for one in present if one.node_state is NodeState.READY]
    return [
        KindView(
            device_kind=kind,
            slots=sum(one.slots for one in present if one.device_kind == kind),
            in_service=sum(one.slots for one in ready if one.device_kind == kind),
            held=sum(one.held for one in present if one.device_kind == kind),
            free=sum(one.slots - one.held for one in ready if one.device_kind == kind),
            usd_per_slot_h=usd_per_slot_h.get(kind, 0.0),
        )
        for kind in sorted({one.device_kind for one in present})
    ]


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
