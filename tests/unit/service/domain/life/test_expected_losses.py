"""The losses that ranks expect: with every start and order, and again when they change."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.agents import NodeState, OrderCommand
from headway.contract.run_facts import LossRate, ProgressSource
from headway.contract.values.markets import Market, pool_name
from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import Node, SlotKey, Snapshot
from service.domain.cluster.spot_rate import FAILURES_PER_H, TOGETHER
from service.domain.jobs.job import Allocation, Job, Switch
from service.domain.life.commands import send_losses
from service.domain.life.expected_losses import CHANGED, has_other_losses, machine_losses_per_h
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    FOUR,
    JOB,
    THREE,
    TWO,
    alter,
    deliver,
    event_of,
    job_of,
    life_of,
    orders,
    run_at,
    starting,
    training,
    waiting,
)
from tests.unit.service.domain.life.tables import BEGIN

LIBRARY = ProgressSource.LIBRARY
COPIES = {"min": 1, "max": 4, "redundancy": "neighbour"}


def risky(cluster: Cluster, **losses_per_h: float) -> Cluster:
    """The cluster with other losses of its nodes."""
    hosts = cluster.tables.hosts
    for node, per_h in losses_per_h.items():
        hosts[node] = replace(hosts[node], losses_per_h=per_h)
    return cluster


def started(slots: Allocation, resize: str = "live", **losses_per_h: float) -> Cluster:
    cluster = risky(waiting(resize), **losses_per_h)
    cluster.start(JOB, slots)
    return cluster


def seen(cluster: Cluster, hazard_per_h: float, **nodes: Market) -> Snapshot:
    """The cluster as a round reads it, where spot machines have this hazard."""
    known = {
        name: Node(id=name, name=name, state=NodeState.READY, slots={0: "cpu", 1: "cpu"}, market=market)
        for name, market in nodes.items()
    }
    return Snapshot(
        now=BEGIN,
        nodes=known,
        jobs={JOB: job_of(cluster)},
        held={
            SlotKey(node, slot): JOB for node, slots in job_of(cluster).allocation.items() for slot in slots
        },
        hazard_per_h={pool_name("cpu", Market.SPOT): hazard_per_h},
    )


def listening(cluster: Cluster, per_h: float | None, **fields: object) -> Job:
    """The job with ranks of the library that were told this rate."""
    losses = None if per_h is None else LossRate(per_h=per_h, at=BEGIN)
    progress = job_of(cluster).progress.model_copy(update={"losses": losses, "source": LIBRARY})
    return alter(cluster, progress=progress, **fields)


def test_a_machine_fails_and_is_interrupted_by_its_market() -> None:
    hazards = {pool_name("t4", Market.SPOT): 0.2, pool_name("a100", Market.SPOT): 0.3}
    assert machine_losses_per_h(["t4", "a100"], Market.SPOT, hazards) == FAILURES_PER_H + 0.3
    assert machine_losses_per_h(["t4"], Market.ON_DEMAND, hazards) == FAILURES_PER_H
    assert machine_losses_per_h(["h100"], Market.SPOT, hazards) == FAILURES_PER_H
    assert machine_losses_per_h([], Market.SPOT, hazards) == FAILURES_PER_H


@pytest.mark.parametrize(
    ("slots", "resize", "expected"),
    [
        pytest.param(TWO, "live", 0.25, id="two slots of one machine"),
        pytest.param(TWO, "restart", 0.25, id="one machine of a job that restarts"),
        pytest.param(THREE, "restart", 0.75, id="a job that restarts at the loss of either machine"),
        pytest.param(THREE, "live", TOGETHER * 0.25, id="a live job goes on with the other"),
    ],
)
def test_a_start_names_the_losses_of_its_machines(slots: Allocation, resize: str, expected: float) -> None:
    cluster = started(slots, resize, n0=0.25, n1=0.5)
    for node in slots:
        losses = run_at(cluster, node).losses
        assert losses is not None
        assert (losses.per_h, losses.at) == (pytest.approx(expected), BEGIN)
    assert job_of(cluster).progress.losses == run_at(cluster, "n0").losses


@pytest.mark.parametrize(
    ("slots", "fields", "expected"),
    [
        pytest.param(FOUR, {"parallel": {"fsdp": 2}}, TOGETHER * 0.25, id="a replica on each machine"),
        pytest.param(FOUR, {"parallel": {"fsdp": 4}}, 0.75, id="no replicas"),
        pytest.param(THREE, {"elastic": COPIES}, 0.25, id="two neighbours on one machine"),
        pytest.param({"n0": (0,), "n1": (0,)}, {"elastic": COPIES}, TOGETHER * 0.25, id="copies"),
    ],
)
def test_copies_on_other_machines_survive_the_loss_of_one(
    slots: Allocation, fields: dict[str, object], expected: float
) -> None:
    cluster = risky(training(slots, **fields), n0=0.25, n1=0.5)
    progress = job_of(cluster).progress.model_copy(update={"replicates": True, "source": LIBRARY})
    alter(cluster, sharded=True, progress=progress)
    cluster.store(send_losses(life_of(cluster)))
    losses = job_of(cluster).progress.losses
    assert losses is not None
    assert losses.per_h == pytest.approx(expected)


def test_a_fixed_interval_needs_no_losses() -> None:
    cluster = starting(THREE, checkpoint={"every": 600.0})
    assert run_at(cluster, "n0").losses is None
    assert job_of(cluster).progress.losses is None


def test_a_change_names_the_losses_of_the_machines_that_it_leads_to() -> None:
    cluster = risky(waiting(), n0=0.25, n1=0.5)
    cluster.start(JOB, TWO)
    cluster.settle()
    cluster.take_first_step(JOB)
    cluster.settle()
    before = job_of(cluster).progress.losses
    cluster.tables.now = BEGIN + timedelta(minutes=1)
    cluster.change(JOB, THREE)
    newcomers = run_at(cluster, "n1").losses
    assert newcomers is not None
    assert newcomers.per_h == pytest.approx(TOGETHER * 0.25)
    assert job_of(cluster).progress.losses == before, "training goes on without the newcomers"
    deliver(cluster, "n1")
    (new,) = [key for key in cluster.processes if key[1] == 2]
    cluster.get_ready(new)
    deliver(cluster, "n1", commands=False)
    (order,) = cluster.agents["n0"].inbox
    assert isinstance(order, OrderCommand)
    assert order.losses == job_of(cluster).progress.losses
    assert order.losses is not None
    assert (order.losses.per_h, order.losses.at) == (pytest.approx(TOGETHER * 0.25), cluster.tables.now)


def test_changed_losses_repeat_the_present_order() -> None:
    cluster = risky(training(THREE), n0=2.0, n1=1.0)
    job = listening(cluster, 0.1)
    cluster.tables.now = BEGIN + timedelta(minutes=1)
    life = send_losses(life_of(cluster))
    assert life.job == replace(job, progress=life.job.progress)
    told = life.job.progress.losses
    assert told is not None
    assert (told.per_h, told.at) == (pytest.approx(TOGETHER), cluster.tables.now)
    found = orders(life)
    assert list(found) == ["n0", "n1"]
    record = life.running
    assert record is not None
    for node, order in found.items():
        assert (order.generation, order.losses, order.lost) == (job.generation, told, False)
        assert tuple(order.members) == record.members
        assert (order.store_addr, order.store_port) == ("n0.example", record.master_port)
        assert order.command_id.endswith(f".{node}")
    event = event_of(life, "losses_expected")
    assert event.data == {"losses_per_h": told.per_h, "before_per_h": 0.1}
    cluster.tables.now += timedelta(seconds=1)
    again = orders(send_losses(life_of(cluster)))
    assert {one.command_id for one in again.values()}.isdisjoint(one.command_id for one in found.values())


def test_a_repeated_order_changes_no_members() -> None:
    cluster = training(THREE)
    listening(cluster, None)
    before = dict(cluster.processes)
    cluster.store(send_losses(life_of(cluster)))
    cluster.settle()
    assert cluster.processes == before
    assert (job_of(cluster).state, job_of(cluster).generation) == (JobState.RUNNING, 1)


@pytest.mark.parametrize(
    ("told", "hazard", "expected"),
    [
        (None, 0.0, True),
        (FAILURES_PER_H, 0.0, False),
        (FAILURES_PER_H + 0.2, 0.2, False),
        (FAILURES_PER_H + 0.2, 0.2 * CHANGED - 0.01, False),
        (FAILURES_PER_H + 0.2, 0.2 * CHANGED + 0.01, True),
        (FAILURES_PER_H + 0.2, 0.2 / CHANGED + 0.01, False),
        (FAILURES_PER_H + 0.2, 0.2 / CHANGED - 0.01, True),
    ],
)
def test_ranks_hear_of_losses_that_differ_much(told: float | None, hazard: float, expected: bool) -> None:
    cluster = training(TWO)
    assert has_other_losses(listening(cluster, told), seen(cluster, hazard, n0=Market.SPOT)) is expected


def test_a_round_expects_what_an_order_then_says() -> None:
    """A round reads the snapshot, an order the nodes; with different rates they would repeat orders forever."""
    for slots, resize in ((TWO, "live"), (THREE, "live"), (THREE, "restart")):
        cluster = risky(training(slots, resize), n0=FAILURES_PER_H + 0.25, n1=FAILURES_PER_H)
        listening(cluster, 50.0)
        snapshot = seen(cluster, 0.25, n0=Market.SPOT, n1=Market.ON_DEMAND)
        assert has_other_losses(job_of(cluster), snapshot)
        cluster.store(send_losses(life_of(cluster)))
        assert not has_other_losses(job_of(cluster), snapshot)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"state": JobState.RECOVERING}, id="not running"),
        pytest.param(
            {"switch": Switch(generation=2, began_at=BEGIN, deadline=BEGIN)}, id="a change is under way"
        ),
        pytest.param({"live": False, "generation": 9}, id="no first step yet"),
    ],
)
def test_others_are_left_alone(fields: dict[str, object]) -> None:
    cluster = training(TWO)
    assert has_other_losses(listening(cluster, 9.0), seen(cluster, 0.0, n0=Market.SPOT))
    assert not has_other_losses(listening(cluster, 9.0, **fields), seen(cluster, 0.0, n0=Market.SPOT))


def test_only_ranks_of_the_library_with_an_automatic_interval_listen() -> None:
    fixed = training(TWO, checkpoint={"every": 60.0})
    assert not has_other_losses(listening(fixed, 9.0), seen(fixed, 0.0, n0=Market.SPOT))
    script = training(TWO)
    progress = listening(script, 9.0).progress.model_copy(update={"source": ProgressSource.SCRIPT})
    assert not has_other_losses(alter(script, progress=progress), seen(script, 0.0, n0=Market.SPOT))


def test_a_job_whose_node_is_gone_waits_for_the_report_about_it() -> None:
    cluster = training(THREE)
    assert not has_other_losses(listening(cluster, 9.0), seen(cluster, 0.0, n0=Market.SPOT))
