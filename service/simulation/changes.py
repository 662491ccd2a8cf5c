"""What-if changes, made to a picture of the cluster: one snapshot in, another out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.contract.agents import NodeState
from headway.contract.decisions import PolicyRequest
from headway.contract.jobs import JobState, Reason
from headway.contract.simulations import (
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
from service.domain.cluster import Node, PolicySetting, Snapshot
from service.domain.errors import InvalidField
from service.domain.jobs import Job
from service.domain.policies.registry import policy

BUDGET = "budget"
_GONE = frozenset({NodeState.LOST, NodeState.DRAINED})
"""Nodes in these states are not there: nobody can lose what they had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A snapshot with changes. `after_s` and `samples` are of jobs that were added: when they are submitted, from now,
    and how many samples they train on, where that was said.
    """

    snapshot: Snapshot
    after_s: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)


def with_changes(snapshot: Snapshot, changes: Sequence[Change]) -> Changed:
    """The snapshot as it would be with the changes, made in their order.

    Raises InvalidField, which names the change, for one that cannot be made: a node, job, kind or policy that does not
    exist, more nodes than there are, a name that is taken.
    """
    found = Changed(snapshot=snapshot)
    for index, change in enumerate(changes):
        found = _with_change(found, change, f"changes.{index}")
    return found


def settings_of(snapshot: Snapshot, policies: Sequence[PolicyRequest]) -> tuple[PolicySetting, ...]:
    """The policies to compare: those that were asked for, or the one that the cluster follows.

    Raises InvalidField for a policy or parameter that does not exist.
    """
    if not policies:
        return (snapshot.policy,)
    for index, one in enumerate(policies):
        _checked_policy(one.policy, one.parameters, f"policies.{index}")
    return tuple(PolicySetting(one.policy, one.parameters) for one in policies)


def _with_change(found: Changed, change: Change, where: str) -> Changed:
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
            _checked_policy(change.policy, change.parameters, where)
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
                f"{where}.slots", f"no node has {kind} yet: say how many slots each new one has"
            )
        slots = max(sizes, key=lambda size: (sizes[size], size))
    begin = sum(node_id.startswith("~") for node_id in snapshot.nodes)
    # The tilde keeps them apart from ids of real nodes, and behind them.
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
        there = f"there are {len(having)} nodes with {kind}" if having else f"no node has {kind}"
        raise InvalidField(f"{where}.nodes", f"{there}: {change.nodes} cannot be removed")
    having.sort(key=lambda node: (held[node.id], node.id))
    return _without(snapshot, {node.id for node in having[: change.nodes]})


def _without(snapshot: Snapshot, gone: set[str]) -> Snapshot:
    """The snapshot without these nodes. A job that held a slot there has lost all of what it had."""
    losers = {job for key, job in snapshot.held.items() if key.node_id in gone}
    return replace(
        _freed(snapshot, losers),
        nodes={node_id: node for node_id, node in snapshot.nodes.items() if node_id not in gone},
    )


def _freed(snapshot: Snapshot, losers: set[str]) -> Snapshot:
    """The snapshot in which these jobs hold nothing, and wait to start again."""
    waiting = {
        job_id: replace(job, state=JobState.PENDING, allocation={}, target=None, switch=None, retry_at=None)
        if job_id in losers
        else job
        for job_id, job in snapshot.jobs.items()
    }
    held = {key: job for key, job in snapshot.held.items() if job not in losers}
    return replace(snapshot, jobs=waiting, held=held)


def _with_budget(snapshot: Snapshot, change: SetBudget, where: str) -> Snapshot:
    present = snapshot.policy
    parameters = {**(present.parameters if present.name == BUDGET else {}), "usd_per_h": change.usd_per_h}
    # A delay's price that was fixed before would leave the budget without effect.
    parameters.pop("mu_h_per_usd", None)
    _checked_policy(BUDGET, parameters, where)
    return replace(snapshot, policy=PolicySetting(BUDGET, parameters), policy_state={})


def _without_job(snapshot: Snapshot, change: DropJob, where: str) -> Snapshot:
    for job in snapshot.jobs.values():
        if change.job in {job.id, job.name}:
            freed = _freed(snapshot, {job.id})
            return replace(freed, jobs={key: one for key, one in freed.jobs.items() if key != job.id})
    raise InvalidField(f"{where}.job", f"no active job has the id or name {change.job!r}")


def _with_job(found: Changed, change: AddJob, where: str) -> Changed:
    spec, snapshot = change.spec, found.snapshot
    if any((job.name, job.spec.project) == (spec.name, spec.project) for job in snapshot.jobs.values()):
        raise InvalidField(
            f"{where}.spec.name", f"an active job of project {spec.project} is named {spec.name} already"
        )
    job = Job(
        # Behind all that are there, as one that is submitted now.
        id=f"~{spec.project}/{spec.name}",
        spec=spec,
        state=JobState.PENDING,
        reason=Reason.SUBMITTED,
        message="",
        submitted_at=snapshot.now,
        state_since=snapshot.now,
    )
    return Changed(
        snapshot=replace(snapshot, jobs={**snapshot.jobs, job.id: job}),
        after_s={**found.after_s, job.id: change.after_s},
        samples=found.samples if change.samples is None else {**found.samples, job.id: change.samples},
    )


def _node(snapshot: Snapshot, name: str, where: str) -> Node:
    for node in snapshot.nodes.values():
        if name in {node.id, node.name}:
            return node
    there = ", ".join(sorted(node.name for node in snapshot.nodes.values())[:10]) or "none"
    raise InvalidField(where, f"no node has the id or name {name!r}; there are: {there}")


def _known_kind(snapshot: Snapshot, kind: str, where: str) -> None:
    there = {kind for node in snapshot.nodes.values() for kind in node.slots.values()}
    if kind not in there:
        raise InvalidField(where, f"no node has {kind}; there are: {', '.join(sorted(there)) or 'none'}")


def _checked_policy(name: str, parameters: Mapping[str, object], where: str) -> None:
    try:
        policy(name, parameters)
    except InvalidField as error:
        raise InvalidField(f"{where}.{error.field}", error.message) from None
