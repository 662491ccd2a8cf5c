"""Jobs with an image get slots of hosts with a container engine, and no others."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.pools import Pool
from service.domain.cluster.snapshot import Snapshot
from service.domain.jobs.job import Job
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import clusters, holding, job_of, node_of, snapshot_of, spec_of

IMAGE = "registry.example.com/train:1"


def round_of(snapshot: Snapshot) -> dict[str, Decision]:
    return {one.job_id: one for one in decide(build_round(snapshot), Goodput(), solve).decisions}


def job(name: str, slots: int = 1, *, image: bool = True, state: JobState = JobState.PENDING) -> Job:
    elastic = {"min": slots, "max": slots}
    return job_of(
        name, state, age_s=600.0, spec=spec_of(name, elastic=elastic, image=IMAGE if image else None)
    )


def test_image_job_goes_to_a_node_with_an_engine() -> None:
    nodes = [node_of("a", containers=False), node_of("b"), node_of("c", containers=False)]
    one = round_of(snapshot_of(nodes, [job("j", 2)]))["j"]
    assert (one.action, list(one.allocation)) == (Action.START, ["b"])
    assert "2 cpu (containers) slots" in one.message


def test_image_job_without_any_engine_waits_with_that_reason() -> None:
    nodes = [node_of("a", containers=False), node_of("b", state=NodeState.LOST)]
    one = round_of(snapshot_of(nodes, [job("j"), job("plain", image=False)]))
    assert (one["j"].action, one["j"].reason) == (Action.WAIT, Reason.NO_CONTAINER_ENGINE)
    assert "no node in service with cpu has a container engine" in one["j"].message
    assert one["plain"].action is Action.START


def test_an_engine_on_other_devices_does_not_count() -> None:
    wanting = job_of("j", spec=spec_of("j", image=IMAGE, resources={"devices": ["a100"]}))
    nodes = [node_of("a", containers=False, kind="a100"), node_of("b")]
    one = round_of(snapshot_of(nodes, [wanting]))["j"]
    assert one.reason is Reason.NO_CONTAINER_ENGINE
    assert "with a100" in one.message


def test_image_job_waits_for_room_on_a_node_with_an_engine() -> None:
    nodes = [node_of("a", slots=4, containers=False), node_of("b", slots=1)]
    one = round_of(snapshot_of(nodes, [job("j", 2)]))["j"]
    assert (one.action, one.reason) == (Action.WAIT, Reason.WAITING_FOR_CAPACITY)


def test_pools_are_apart_only_while_some_job_needs_it() -> None:
    nodes = [node_of("a", containers=False), node_of("b"), node_of("g", kind="a100", containers=False)]
    assert set(snapshot_of(nodes, [job("j", image=False)]).pools.values()) == {
        Pool("cpu", containers=False),
        Pool("a100", containers=False),
    }
    apart = snapshot_of(nodes, [job("j")])
    assert {pool.name for pool in apart.pools.values()} == {"cpu", "cpu (containers)", "a100"}
    assert {pool.priced_as for pool in apart.pools.values()} == {"cpu", "a100"}


def test_plain_jobs_use_hosts_with_an_engine_as_well() -> None:
    nodes = [node_of("a", containers=False), node_of("b")]
    found = round_of(snapshot_of(nodes, [job("j", 2, image=False), job("k", 2, image=False), job("c", 1)]))
    started = [one for one in found.values() if one.action is Action.START]
    assert len(started) == 2


def test_running_image_job_stays() -> None:
    running = holding(job("j", 2, state=JobState.RUNNING), [("b", 0), ("b", 1)])
    nodes = [node_of("a", containers=False), node_of("b")]
    snapshot = snapshot_of(nodes, [running], {"j": [("b", 0), ("b", 1)]})
    assert round_of(snapshot)["j"].action is Action.KEEP


@settings(max_examples=40)
@given(snapshot=clusters(), data=st.data())
def test_no_round_gives_an_image_a_host_without_engine(snapshot: Snapshot, data: st.DataObject) -> None:
    able = {node: data.draw(st.booleans(), label=node) for node in snapshot.nodes}
    imaged = {name: data.draw(st.booleans(), label=name) for name in snapshot.jobs}
    nodes = {name: replace(node, containers=able[name]) for name, node in snapshot.nodes.items()}
    jobs = {
        name: replace(one, spec=one.spec.model_copy(update={"image": IMAGE if imaged[name] else None}))
        for name, one in snapshot.jobs.items()
    }
    for name, one in round_of(replace(snapshot, nodes=nodes, jobs=jobs)).items():
        if imaged[name] and one.action in {Action.START, Action.CHANGE}:
            assert all(able[node] for node in one.allocation)
