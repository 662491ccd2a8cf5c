"""What-if changes to a snapshot of the cluster. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.contract.agents import NodeState
from headway.contract.views.decisions import PolicyRequest
from headway.contract.views.jobs import JobState, Reason
from headway.contract.views.simulations import (
    AddJob,
    AddNodes,
    Change,
    DropJob,
    KillNode,
    RemoveNodes,
    SetBudget,
    SetPolicy,
    SetPrice,
)
from service.domain.cluster.snapshot import Node, PolicySetting, Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.budget import BudgetPolicy
from service.domain.policies.registry import POLICIES, Policies
from service.domain.shared.errors import InvalidField

BUDGET = BudgetPolicy.name
_GONE = frozenset({NodeState.LOST, NodeState.DRAINED})
"""States of nodes that are not present, so that no job can lose slots on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSnapshot:
    """Snapshot with changes, and facts about the added jobs.

    `after_s` is the time from now to the submission of an added job. `samples` is its number of samples,
    where given.
    """

    snapshot: Snapshot
    after_s: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)


def with_changes(
    snapshot: Snapshot, changes: Sequence[Change], policies: Policies = POLICIES
) -> ChangedSnapshot:
    """Return the snapshot with the changes, made in their order.

    Raise InvalidField, which names the change, for a change that cannot be made: a node, job, kind or policy
    does not exist, there are fewer nodes than requested, or a name is taken.
    """
    found = ChangedSnapshot(snapshot=snapshot)
    for index, change in enumerate(changes):
        found = _with_change(found, change, f"changes.{index}", policies)
    return found


def settings_of(
    snapshot: Snapshot, asked: Sequence[PolicyRequest], policies: Policies = POLICIES
) -> tuple[PolicySetting, ...]:
    """Return the policies to compare: the requested ones, or the present policy of the cluster.

    Raise InvalidField for a policy or parameter that does not exist.
    """
    if not asked:
        return (snapshot.policy,)
    for index, one in enumerate(asked):
        _checked_policy(policies, one.policy, one.parameters, f"policies.{index}")
    return tuple(PolicySetting(one.policy, one.parameters) for one in asked)


def _with_change(found: ChangedSnapshot, change: Change, where: str, policies: Policies) -> ChangedSnapshot:
    snapshot = found.snapshot
    match change:
        case AddNodes():
            snapshot = _with_nodes(snapshot, change, where)
        case RemoveNodes():
            snapshot = _with_fewer(snapshot, change, where)
        case KillNode():
            snapshot = _without(snapshot, {_node(snapshot, change.node, f"{where}.node").id})
        case SetBudget():
            snapshot = _with_budget(snapshot, change, where)
        case SetPolicy():
            _checked_policy(policies, change.policy, change.parameters, where)
            snapshot = replace(
                snapshot, policy=PolicySetting(change.policy, change.parameters), policy_state={}
            )
        case SetPrice():
            prices = {**snapshot.usd_per_slot_h, change.device_kind: change.usd_per_slot_h}
            _known_kind(snapshot, change.device_kind, f"{where}.device_kind")
            snapshot = replace(snapshot, usd_per_slot_h=prices)
        case DropJob():
            snapshot = _without_job(snapshot, change, where)
        case AddJob():
            return _with_job(found, change, where)
    return replace(found, snapshot=snapshot)


def _with_nodes(snapshot: Snapshot, change: AddNodes, where: str) -> Snapshot:
    kind, slots = change.device_kind, change.slots
    if slots is None:
        sizes = Counter(
            size for node in snapshot.nodes.values() if (size := [*node.slots.values()].count(kind))
        )
        if not sizes:
            raise InvalidField(
                f"{where}.slots", f"no node has {kind} yet: give the number of slots of each new node"
            )
        slots = max(sizes, key=lambda size: (sizes[size], size))
    begin = sum(node_id.startswith("~") for node_id in snapshot.nodes)
    # Ids with a tilde differ from the ids of real nodes and sort after them.
    added = {
        f"~{number:05}": Node(
            id=f"~{number:05}",
            name=f"new-{number + 1}",
            state=NodeState.READY,
            slots=dict.fromkeys(range(slots), kind),
        )
        for number in range(begin, begin + change.nodes)
    }
    return replace(snapshot, nodes={**snapshot.nodes, **added})


def _with_fewer(snapshot: Snapshot, change: RemoveNodes, where: str) -> Snapshot:
    kind = change.device_kind
    held = Counter(key.node_id for key in snapshot.held)
    having = [
        node for node in snapshot.nodes.values() if kind in node.slots.values() and node.state not in _GONE
    ]
    if len(having) < change.nodes:
        present = f"there are {len(having)} nodes with {kind}" if having else f"no node has {kind}"
        raise InvalidField(f"{where}.nodes", f"{present}: {change.nodes} cannot be removed")
    having.sort(key=lambda node: (held[node.id], node.id))
    return _without(snapshot, {node.id for node in having[: change.nodes]})


def _without(snapshot: Snapshot, removed: set[str]) -> Snapshot:
    """Return the snapshot without these nodes. A job that held a slot on one of them loses all of its slots."""
    affected = {job for key, job in snapshot.held.items() if key.node_id in removed}
    return replace(
        _freed(snapshot, affected),
        nodes={node_id: node for node_id, node in snapshot.nodes.items() if node_id not in removed},
    )


def _freed(snapshot: Snapshot, affected: set[str]) -> Snapshot:
    """Return the snapshot in which these jobs hold nothing and wait to start again."""
    waiting = {
        job_id: replace(job, state=JobState.PENDING, allocation={}, target=None, switch=None, retry_at=None)
        if job_id in affected
        else job
        for job_id, job in snapshot.jobs.items()
    }
    held = {key: job for key, job in snapshot.held.items() if job not in affected}
    return replace(snapshot, jobs=waiting, held=held)


def _with_budget(snapshot: Snapshot, change: SetBudget, where: str) -> Snapshot:
    present = snapshot.policy
    parameters = {**(present.parameters if present.name == BUDGET else {}), "usd_per_h": change.usd_per_h}
    # A fixed price of delay from before would leave the budget without effect.
    parameters.pop("mu_h_per_usd", None)
    _checked_policy(POLICIES, BUDGET, parameters, where)
    return replace(snapshot, policy=PolicySetting(BUDGET, parameters), policy_state={})


def _without_job(snapshot: Snapshot, change: DropJob, where: str) -> Snapshot:
    for job in snapshot.jobs.values():
        if change.job in {job.id, job.name}:
            freed = _freed(snapshot, {job.id})
            return replace(freed, jobs={key: one for key, one in freed.jobs.items() if key != job.id})
    raise InvalidField(f"{where}.job", f"no active job has the id or name {change.job!r}")


def _with_job(found: ChangedSnapshot, change: AddJob, where: str) -> ChangedSnapshot:
    spec, snapshot = change.spec, found.snapshot
    if any((job.name, job.spec.project) == (spec.name, spec.project) for job in snapshot.jobs.values()):
        raise InvalidField(
            f"{where}.spec.name", f"an active job of project {spec.project} already has the name {spec.name}"
        )
    job = Job(
        # The id sorts after all present jobs, like that of a job submitted now.
        id=f"~{spec.project}/{spec.name}",
        spec=spec,
        state=JobState.PENDING,
        reason=Reason.SUBMITTED,
        message="",
        submitted_at=snapshot.now,
        state_since=snapshot.now,
    )
    return ChangedSnapshot(
        snapshot=replace(snapshot, jobs={**snapshot.jobs, job.id: job}),
        after_s={**found.after_s, job.id: change.after_s},
        samples=found.samples if change.samples is None else {**found.samples, job.id: change.samples},
    )


def _node(snapshot: Snapshot, name: str, where: str) -> Node:
    for node in snapshot.nodes.values():
        if name in {node.id, node.name}:
            return node
    present = ", ".join(sorted(node.name for node in snapshot.nodes.values())[:10]) or "none"
    raise InvalidField(where, f"no node has the id or name {name!r}; the nodes are: {present}")


def _known_kind(snapshot: Snapshot, kind: str, where: str) -> None:
    present = {kind for node in snapshot.nodes.values() for kind in node.slots.values()}
    if kind not in present:
        raise InvalidField(
            where, f"no node has {kind}; the kinds are: {', '.join(sorted(present)) or 'none'}"
        )


def _checked_policy(policies: Policies, name: str, parameters: Mapping[str, object], where: str) -> None:
    try:
        policies.policy(name, parameters)
    except InvalidField as error:
        raise InvalidField(f"{where}.{error.field}", error.message) from None
