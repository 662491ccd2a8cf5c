"""Jobs, nodes and whole clusters, small to write down and random to search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.values.markets import Market
from headway.contract.views.jobs import TERMINAL_STATES, JobProgress, JobState, Reason
from service.domain.cluster.pools import Pool
from service.domain.cluster.snapshot import Cap, Limit, Measurement, Node, Served, SlotKey, Snapshot
from service.domain.jobs.job import Job
from service.domain.rental.machines import Machine, MachineReason, MachineState

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
KINDS = ("a100", "cpu", "h100")
OCCUPYING_STATES = frozenset(
    {JobState.STARTING, JobState.RUNNING, JobState.RESIZING, JobState.RECOVERING, JobState.CANCELLING}
)
"""States in which a job may hold slots."""
LIVE_STATES = tuple(state for state in JobState if state not in TERMINAL_STATES)


def spec_of(name: str = "job", **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"name": name, "run": "python train.py", **fields})


def job_of(
    job_id: str = "job",
    state: JobState = JobState.PENDING,
    *,
    age_s: float = 0.0,
    spec: JobSpec | None = None,
    **fields: Any,
) -> Job:
    """A job that has been in `state` for `age_s`."""
    return Job(
        **{
            "id": job_id,
            "spec": spec or spec_of(job_id),
            "state": state,
            "reason": Reason.SUBMITTED,
            "message": "",
            "submitted_at": NOW - timedelta(seconds=age_s),
            "state_since": NOW - timedelta(seconds=age_s),
            **fields,
        }
    )


def holding(job: Job, slots: Iterable[tuple[str, int]]) -> Job:
    """The job with these (node id, slot) pairs as its allocation."""
    allocation: dict[str, tuple[int, ...]] = {}
    for node, slot in slots:
        allocation[node] = (*allocation.get(node, ()), slot)
    return replace(job, allocation=allocation)


def node_of(
    node_id: str, slots: int = 2, kind: str = "cpu", state: NodeState = NodeState.READY, **fields: Any
) -> Node:
    return Node(
        id=node_id,
        name=f"name-of-{node_id}",
        state=state,
        slots=dict.fromkeys(range(slots), kind),
        **fields,
    )


def machine_of(machine_id: str = "m1", **fields: Any) -> Machine:
    return Machine(
        **{
            "id": machine_id,
            "provider": "cloud",
            "region": "here",
            "instance_type": "small",
            "device_kind": "cpu",
            "slots": 2,
            "market": Market.SPOT,
            "usd_per_h": 3.6,
            "state": MachineState.WANTED,
            "reason": MachineReason.WORTH_IT,
            "message": "",
            "requested_at": NOW,
            "state_since": NOW,
            **fields,
        }
    )


def snapshot_of(
    nodes: Iterable[Node] = (),
    jobs: Iterable[Job] = (),
    held: dict[str, list[tuple[str, int]]] | None = None,
    measurements: dict[str, tuple[Measurement, ...]] | None = None,
) -> Snapshot:
    """`held` maps job ids to (node id, slot) pairs. Jobs have held them for as long as they are in their state."""
    jobs = tuple(jobs)
    return Snapshot(
        now=NOW,
        nodes={node.id: node for node in nodes},
        jobs={job.id: holding(job, (held or {}).get(job.id, ())) for job in jobs},
        held={SlotKey(*pair): job for job, pairs in (held or {}).items() for pair in pairs},
        measurements=measurements or {},
        served={job.id: served(job) for job in jobs if job.id in (held or {})},
    )


def served(job: Job) -> Served:
    """Return the use of a job that has held CPU slots since its state began."""
    age_s = (NOW - job.state_since).total_seconds()
    return Served({"cpu": age_s}, age_s)


wild_floats = st.one_of(
    st.floats(0.001, 1e6),
    st.floats(),
    st.sampled_from([0.0, -1.0, 5e-324, 1e-300, 1e300, 1.7e308, float("inf"), float("nan")]),
)
"""Values that a broken or malicious script could put into a measurement."""


@st.composite
def measurements_of(draw: st.DrawFn) -> tuple[Measurement, ...]:
    one = st.builds(
        Measurement,
        device_kind=st.sampled_from(KINDS),
        slots=st.integers(1, 16),
        samples_per_s=wild_floats,
        steps=st.integers(0, 10_000),
    )
    return tuple(draw(st.lists(one, max_size=4)))


@st.composite
def elastic_parts(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(st.integers(1, 4))
    high = draw(st.integers(low, low + 6))
    listed = st.lists(st.integers(low, high), min_size=1, max_size=3)
    return {
        "min": low,
        "max": high,
        "sizes": draw(st.one_of(st.sampled_from(["any", "pow2"]), listed)),
        "resize": draw(st.sampled_from(["live", "restart", "never"])),
    }


@st.composite
def nodes_of(draw: st.DrawFn, index: int) -> Node:
    kind = draw(st.sampled_from(KINDS))
    slots = dict.fromkeys(range(draw(st.integers(1, 5))), kind)
    if draw(st.booleans()):
        slots[0] = draw(st.sampled_from(KINDS))
    state = draw(st.one_of(st.just(NodeState.READY), st.sampled_from(NodeState)))
    return Node(
        id=f"n{index}",
        name=f"node-{index}",
        state=state,
        slots=slots,
        market=draw(st.sampled_from([Market.ON_DEMAND, Market.ON_DEMAND, Market.SPOT])),
        usd_per_slot_h=draw(st.sampled_from([None, 0.0, 0.3, 1.0])),
        reclaim_at=NOW + timedelta(seconds=90) if draw(st.integers(0, 9)) == 9 else None,
    )


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Any consistent picture: nodes and jobs in all states, grants as the service would have made them.

    Now and then a node no longer reports a slot that is held, or that is in quarantine.
    """
    nodes = {f"n{index}": draw(nodes_of(index)) for index in range(draw(st.integers(0, 4)))}
    free = [SlotKey(node.id, slot) for node in nodes.values() for slot in node.slots]
    jobs: dict[str, Job] = {}
    held: dict[SlotKey, str] = {}
    measured: dict[str, tuple[Measurement, ...]] = {}
    for index in range(draw(st.integers(0, 6))):
        job = draw(jobs_of(f"j{index}"))
        slots: list[SlotKey] = []
        pools = {key: Pool(nodes[key.node_id].slots[key.slot], nodes[key.node_id].market) for key in free}
        serving = [key for key in free if pools[key].serves(job.spec)]
        kinds = sorted({pools[key].kind for key in serving})
        if job.state in OCCUPYING_STATES and kinds:
            kind = draw(st.sampled_from(kinds))
            alike = [key for key in serving if pools[key].kind == kind]
            slots = alike[: draw(st.sampled_from(job.spec.elastic.allowed_sizes()))]
            if job.live and len(slots) > 1 and draw(st.booleans()):
                slots.pop()  # a loss that it survived
        if job.state is JobState.RUNNING and not slots:
            continue
        free = [key for key in free if key not in slots]
        held |= dict.fromkeys(slots, job.id)
        # Now and then one has left a slot already: its generation is coming to its end.
        left = [("gone", 0)] if slots and draw(st.integers(0, 9)) == 9 else []
        jobs[job.id] = holding(job, [*((key.node_id, key.slot) for key in slots), *left])
        if draw(st.booleans()):
            measured[job.id] = draw(measurements_of())
    if held and draw(st.integers(0, 3)) == 3:
        gone = draw(st.sampled_from(sorted(held, key=lambda key: (key.node_id, key.slot))))
        node = nodes[gone.node_id]
        left = {slot: kind for slot, kind in node.slots.items() if slot != gone.slot}
        confined = {gone.slot: "Xid 79"} if draw(st.booleans()) else {}
        nodes[node.id] = replace(node, slots=left, quarantined=confined)
    times = {job: served(jobs[job]) for job in held.values()}
    return Snapshot(
        now=NOW,
        nodes=nodes,
        jobs=jobs,
        held=held,
        measurements=measured,
        served=times,
        usd_per_slot_h={"cpu": 0.5, "h100": 4.0} if draw(st.booleans()) else {},
        hazard_per_h={"cpu (spot)": 0.5, "a100 (spot)": 20.0} if draw(st.booleans()) else {},
        caps=tuple(draw(st.lists(caps_of(), max_size=2, unique_by=lambda cap: cap.name))),
        limits={job: draw(limits_of()) for job in jobs if draw(st.integers(0, 3)) == 3},
    )


def caps_of() -> st.SearchStrategy[Cap]:
    return st.builds(
        Cap,
        name=st.sampled_from(["team", "all"]),
        project=st.sampled_from([None, "default", "other"]),
        usd_per_h=st.one_of(st.sampled_from([0.0, 1.0, 1e6]), st.floats(0.0, 20.0)),
    )


def limits_of() -> st.SearchStrategy[Limit]:
    return st.builds(
        Limit,
        left_usd=st.one_of(st.sampled_from([0.0, -1.0, 1e9]), st.floats(0.001, 10.0)),
        on_budget=st.sampled_from(["shrink", "pause", "stop"]),
    )


@st.composite
def goals(draw: st.DrawFn) -> dict[str, Any]:
    """Goals of which half search."""
    return {
        "objective": draw(st.sampled_from(["time", "cost", "balanced"])),
        "search": draw(st.sampled_from([None, None, None, "full", "partial", "none"])),
        "max_cost_usd": draw(st.sampled_from([None, 1e-6, 10.0])),
        "deadline": draw(st.sampled_from([None, NOW - timedelta(hours=1), NOW + timedelta(hours=1)])),
    }


@st.composite
def jobs_of(draw: st.DrawFn, job_id: str, states: tuple[JobState, ...] = LIVE_STATES) -> Job:
    spec = spec_of(
        job_id,
        elastic=draw(elastic_parts()),
        resources={"devices": draw(st.lists(st.sampled_from(KINDS), unique=True, max_size=2))},
        priority=draw(st.sampled_from([0, 50, 100])),
        market=draw(st.sampled_from(["on-demand", "on-demand", "spot", "mixed", "mixed"])),
        goal=draw(goals()),
    )
    return job_of(
        job_id,
        draw(st.one_of(st.sampled_from([JobState.PENDING, JobState.RUNNING]), st.sampled_from(states))),
        spec=spec,
        age_s=draw(st.sampled_from([0.0, 5.0, 30.0, 1e6])),
        pinned_size=draw(st.one_of(st.none(), st.sampled_from(spec.elastic.allowed_sizes()))),
        pause_requested=draw(st.integers(0, 9)) == 9,
        retry_at=draw(st.sampled_from([None, NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)])),
        generation=draw(st.integers(0, 3)),
        live=draw(st.booleans()),
        progress=JobProgress(total_samples=draw(st.sampled_from([None, 1, 10**6]))),
        grow_after=draw(st.sampled_from([None, NOW, NOW + timedelta(seconds=1)])),
    )
