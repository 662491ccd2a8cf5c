from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from headway.contract.agents import NodeState
from headway.contract.views.decisions import PolicyRequest
from headway.contract.views.jobs import JobState
from headway.contract.views.simulations import Change
from service.domain.cluster.snapshot import PolicySetting, SlotKey, Snapshot
from service.domain.shared.errors import InvalidField
from service.simulation.changes import ChangedSnapshot, settings_of, with_changes
from tests.unit.service.builders import job_of, node_of, snapshot_of

_CHANGES: TypeAdapter[list[Change]] = TypeAdapter(list[Change])


def cluster() -> Snapshot:
    """Return a cluster where `two` and `one` run on n1, with 2 slots and 1 of 4, `waits` waits, and n2 is empty."""
    jobs = [
        job_of("two", JobState.RUNNING),
        job_of("one", JobState.RUNNING),
        job_of("waits"),
    ]
    held = {"two": [("n1", 0), ("n1", 1)], "one": [("n1", 2)]}
    return snapshot_of([node_of("n1", 4), node_of("n2", 2, kind="a100")], jobs, held)


def changed(*changes: dict[str, Any], of: Snapshot | None = None) -> ChangedSnapshot:
    return with_changes(of or cluster(), _CHANGES.validate_python(list(changes)))


def slots(snapshot: Snapshot, kind: str) -> list[int]:
    """Return the slots of each node that has the kind."""
    counts = [[*node.slots.values()].count(kind) for node in snapshot.nodes.values()]
    return sorted(filter(None, counts))


def test_nothing_changes_nothing() -> None:
    before = cluster()
    assert changed(of=before).snapshot == before


def test_nodes_are_added_as_large_as_most_of_their_kind() -> None:
    found = changed({"change": "add_nodes", "device_kind": "cpu", "nodes": 2}).snapshot
    assert slots(found, "cpu") == [4, 4, 4]
    again = changed({"change": "add_nodes", "device_kind": "h100", "nodes": 1, "slots": 8}, of=found).snapshot
    assert (slots(again, "h100"), len(again.nodes)) == ([8], 5)
    assert {node.name for node in again.nodes.values()} > {"new-1", "new-2", "new-3"}


def test_the_emptiest_nodes_are_removed_first() -> None:
    before = snapshot_of(
        [node_of("n1"), node_of("n2"), node_of("gone", state=NodeState.LOST)],
        [job_of("job", JobState.RUNNING)],
        {"job": [("n1", 0)]},
    )
    remove = {"change": "remove_nodes", "device_kind": "cpu", "nodes": 1}
    one = changed(remove, of=before).snapshot
    assert set(one.nodes) == {"n1", "gone"}
    assert one.held == before.held
    none = changed(remove, remove, of=before).snapshot
    assert (set(none.nodes), dict(none.held)) == ({"gone"}, {})
    with pytest.raises(InvalidField, match="there are 2 nodes with cpu: 3 cannot be removed"):
        changed({**remove, "nodes": 3}, of=before)


def test_jobs_of_a_dead_node_lose_all_slots_and_wait() -> None:
    before = snapshot_of(
        [node_of("n1"), node_of("n2")],
        [job_of("wide", JobState.RUNNING), job_of("other", JobState.RUNNING)],
        {"wide": [("n1", 0), ("n2", 0)], "other": [("n2", 1)]},
    )
    for name in ("n1", "name-of-n1"):
        after = changed({"change": "kill_node", "node": name}, of=before).snapshot
        assert set(after.nodes) == {"n2"}
        assert dict(after.held) == {SlotKey("n2", 1): "other"}
        assert after.jobs["wide"].state is JobState.PENDING
        assert after.jobs["wide"].allocation == {}
        assert after.jobs["other"] == before.jobs["other"]


def test_a_dropped_job_leaves_its_slots() -> None:
    after = changed({"change": "drop_job", "job": "two"}).snapshot
    assert set(after.jobs) == {"one", "waits"}
    assert dict(after.held) == {SlotKey("n1", 2): "one"}


def test_an_added_job_comes_last_and_keeps_its_facts_beside_it() -> None:
    spec = {"name": "new", "run": "python x.py"}
    found = changed({"change": "add_job", "spec": spec, "after_s": "30m", "samples": 500})
    (added,) = set(found.snapshot.jobs) - set(cluster().jobs)
    assert found.after_s == {added: 1800.0}
    assert found.samples == {added: 500}
    assert found.snapshot.jobs[added].state is JobState.PENDING
    with pytest.raises(InvalidField, match="already has the name new"):
        changed({"change": "add_job", "spec": spec}, of=found.snapshot)
    with pytest.raises(InvalidField, match="already has the name waits"):
        changed({"change": "add_job", "spec": {**spec, "name": "waits"}})


def test_policies_and_budgets() -> None:
    srtf = changed({"change": "policy", "policy": "srtf"}).snapshot
    assert srtf.policy == PolicySetting("srtf", {})
    budget = changed(
        {"change": "policy", "policy": "budget", "parameters": {"mu_h_per_usd": 1, "horizon_s": 60}},
        {"change": "budget", "usd_per_h": 12},
        of=srtf,
    ).snapshot
    assert budget.policy == PolicySetting("budget", {"horizon_s": 60, "usd_per_h": 12})
    price = changed({"change": "price", "device_kind": "a100", "usd_per_slot_h": 3}).snapshot
    assert price.usd_per_slot_h == {"a100": 3}


def test_the_policies_to_compare() -> None:
    before = cluster()
    assert settings_of(before, []) == (before.policy,)
    asked = [PolicyRequest(policy="fifo"), PolicyRequest(policy="budget", parameters={"usd_per_h": 2})]
    assert settings_of(before, asked) == (PolicySetting("fifo"), PolicySetting("budget", {"usd_per_h": 2}))
    with pytest.raises(InvalidField) as refused:
        settings_of(before, [*asked, PolicyRequest(policy="magic")])
    assert refused.value.field == "policies.2.policy"


def test_an_error_names_the_change_that_cannot_be_made() -> None:
    with pytest.raises(InvalidField, match="no node has the id or name 'n9'") as refused:
        changed({"change": "policy", "policy": "fifo"}, {"change": "kill_node", "node": "n9"})
    assert refused.value.field == "changes.1.node"
