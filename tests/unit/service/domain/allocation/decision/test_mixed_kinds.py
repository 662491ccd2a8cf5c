"""Decisions on jobs that mix two kinds: when a mix pays, what it says, and the speeds that ranks start with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.contract.agents import NodeState
from headway.contract.run_facts import ProgressSource
from headway.contract.views.jobs import JobProgress, Reason
from service.domain.allocation.decision.plan import Action, Decision
from service.domain.cluster.snapshot import Measurement, Node, Snapshot
from service.domain.jobs.job import Job, class_of
from tests.unit.service.builders import node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, decisions, elastic_job, on

MIX = {"mix": ["a100", "t4"]}
NODES = (node_of("n", 2, "a100"), node_of("m", 2, "t4"))


def measured(kind: str, slots: int, speed: float, nodes: int = 1, sync_s: float = 0.0) -> Measurement:
    """At a batch of 320 samples, of which each slot takes as many."""
    return Measurement(
        kind, slots, speed, 2000, nodes=nodes, global_batch=320, local_batch=320 // slots, step_s=320 / speed,
        sync_s=sync_s,
    )  # fmt: skip


FAST = (measured("a100", 1, 400.0), measured("a100", 2, 800.0))
SLOW = (measured("t4", 1, 200.0), measured("t4", 2, 400.0))


def job(high: int = 4, **fields: Any) -> Job:
    given = {"elastic": MIX, "batch": {"global": 320}, **fields}
    return elastic_job("j", given.pop("low", 1), high, **given)


def decide(
    one: Job, points: tuple[Measurement, ...], *, held: Any = None, nodes: tuple[Node, ...] = NODES
) -> Decision:
    return decisions(snapshot_of(nodes, [one], held or {}, {"j": points}))["j"]


def test_a_job_grows_to_both_kinds_and_its_ranks_start_balanced() -> None:
    one = decide(job(state=RUNNING), (*FAST, *SLOW), held={"j": on("n", 0, 1)})
    assert (one.action, one.reason) == (Action.CHANGE, Reason.BETTER_ALLOCATION)
    assert one.allocation == {"m": (0, 1), "n": (0, 1)}
    assert "from 2 a100 slots to 4 slots (2 a100 + 2 t4)" in one.message
    assert one.kind_speeds["a100"] / one.kind_speeds["t4"] == pytest.approx(2.0, rel=0.05)
    assert 2 * one.kind_speeds["a100"] + 2 * one.kind_speeds["t4"] == pytest.approx(320)
    assert one.expected is not None
    assert one.expected.samples_per_s == pytest.approx(940.0, rel=0.02)
    option = next(each for each in one.options if each.device_kind == "a100:2+t4:2")
    assert (option.slots, option.nodes, option.anchor, option.measured) == (4, 2, 0, False)


def test_without_mix_it_stays_on_the_fast_kind() -> None:
    one = decide(job(state=RUNNING, elastic={}), (*FAST, *SLOW), held={"j": on("n", 0, 1)})
    assert (one.action, one.kind_speeds) == (Action.KEEP, {})
    assert all("+" not in each.device_kind for each in one.options)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"batch": {"global": 320, "balance": "off"}}, id="off"),
        pytest.param({"progress": JobProgress(source=ProgressSource.SCRIPT)}, id="no library"),
    ],
)
def test_with_even_batches_the_slow_kind_is_not_worth_it(fields: dict[str, Any]) -> None:
    one = decide(job(state=RUNNING, **fields), (*FAST, *SLOW), held={"j": on("n", 0, 1)})
    assert one.action is Action.KEEP


def test_a_measured_mix_that_disappoints_is_left() -> None:
    slow_mix = Measurement(
        "a100:2+t4:2", 4, 300.0, 2000, nodes=2, global_batch=320, local_batch=128, step_s=320 / 300
    )
    held = {"j": [*on("n", 0, 1), *on("m", 0, 1)]}
    one = decide(job(state=RUNNING), (*FAST, *SLOW, slow_mix), held=held)
    assert (one.action, one.allocation) == (Action.CHANGE, {"n": (0, 1)})
    assert one.kind_speeds == {}
    good = Measurement("a100:2+t4:2", 4, 990.0, 2000, nodes=2, global_batch=320, local_batch=128)
    assert decide(job(state=RUNNING), (*FAST, *SLOW, good), held=held).action is Action.KEEP


def test_a_measured_mix_does_not_change_the_models_of_its_kinds() -> None:
    mix = Measurement("a100:1+t4:1", 2, 50.0, 2000, nodes=2, global_batch=320, local_batch=256, step_s=6.4)
    for points in ((*FAST, *SLOW), (*FAST, *SLOW, mix)):
        one = decide(job(), points)
        by_kind = {(each.device_kind, each.slots): each.goodput_samples_per_s for each in one.options}
        assert by_kind["a100", 2] == pytest.approx(800.0, rel=0.02)
        assert by_kind["t4", 2] == pytest.approx(400.0, rel=0.02)


def test_a_mix_alone_gives_the_models_their_scale() -> None:
    mix = Measurement("a100:1+t4:1", 2, 500.0, 2000, nodes=2, global_batch=320, local_batch=160, step_s=0.64)
    held = {"j": [*on("n", 0), *on("m", 0)]}
    one = decide(job(state=RUNNING), (mix,), held=held)
    speeds = {(each.device_kind, each.slots): each.goodput_samples_per_s or 0.0 for each in one.options}
    assert speeds["a100:1+t4:1", 2] == pytest.approx(500.0, rel=0.05)
    assert 200.0 < speeds["a100", 2] < 1000.0


def test_a_job_that_fits_on_no_kind_alone_starts_on_both() -> None:
    one = decide(job(low=4), ())
    assert (one.action, one.allocation) == (Action.START, {"m": (0, 1), "n": (0, 1)})
    assert one.message.startswith("4 slots (2 a100 + 2 t4) on ")
    waits = decide(job(low=5, high=8), ())
    assert (waits.action, waits.reason) == (Action.WAIT, Reason.WAITING_FOR_CAPACITY)
    assert "needs at least 5 slots of two of a100, t4, and the nodes in service have 4" in waits.message
    alone = decide(job(low=4, elastic={}), ())
    assert "of one kind, and the nodes in service have 2" in alone.message


def test_quotas_and_other_jobs_limit_a_mix() -> None:
    other = elastic_job("o", 1, 1, resources={"devices": ["t4"]}, state=RUNNING)
    snapshot = snapshot_of(
        NODES,
        [job(state=RUNNING), other],
        {"j": on("n", 0, 1), "o": on("m", 0)},
        {"j": (*FAST, *SLOW), "o": (measured("t4", 1, 200.0),)},
    )
    found = decisions(snapshot)
    assert found["o"].action is Action.KEEP
    assert found["j"].allocation == {"m": (1,), "n": (0, 1)}
    assert found["j"].kind_speeds["a100"] == pytest.approx(2 * found["j"].kind_speeds["t4"], rel=0.01)


def test_a_mix_shrinks_to_the_kind_that_remains_when_a_node_drains() -> None:
    leaving = replace(NODES[1], state=NodeState.DRAINING)
    held = {"j": [*on("n", 0, 1), *on("m", 0, 1)]}
    one = decide(job(state=RUNNING, live=True), (*FAST, *SLOW), held=held, nodes=(NODES[0], leaving))
    assert (one.action, one.allocation, one.reason) == (Action.CHANGE, {"n": (0, 1)}, Reason.NODE_DRAINED)


def test_measurements_of_its_class_open_a_mix_at_the_start() -> None:
    one = job()
    snapshot = snapshot_of(NODES, [one], {}, {})
    of_class = {class_of(one.spec): (*FAST, *SLOW)}
    fields = {**{name: getattr(snapshot, name) for name in ("now", "nodes", "jobs", "held")}}
    found = decisions(Snapshot(**fields, class_measurements=of_class))["j"]
    assert (found.action, len(found.allocation)) == (Action.START, 2)
    assert found.kind_speeds
