"""Who takes part in a round, and what of it a job may keep."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.eligibility import (
    SILENT_S,
    Holding,
    backs_off,
    explores,
    holding_of,
    is_movable,
    is_waiting,
    weight_of,
)
from service.domain.cluster.pools import Pool
from service.domain.cluster.snapshot import Measurement, Node, SlotKey
from service.domain.jobs.failures import LONGEST_BACKOFF_S, LONGEST_GROWTH_BACKOFF_S
from service.domain.jobs.job import class_of
from tests.unit.service.builders import LIVE_STATES, NOW, job_of, node_of, snapshot_of, spec_of


@pytest.mark.parametrize("state", LIVE_STATES)
def test_who_may_be_started(state: JobState) -> None:
    job = job_of("j", state)
    starts = state in {JobState.PENDING, JobState.RECOVERING}
    assert is_waiting(job, snapshot_of([], [job])) is starts
    holding = snapshot_of([node_of("n")], [job], {"j": [("n", 0)]})
    assert not is_waiting(job, holding), "its old processes still run"


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"retry_at": NOW - timedelta(seconds=1)}, True),
        ({"retry_at": NOW}, True),
        ({"retry_at": NOW + timedelta(seconds=1)}, False),
        ({"retry_at": NOW + timedelta(seconds=LONGEST_BACKOFF_S + 1)}, False),
        ({"retry_at": NOW + timedelta(hours=1)}, True),  # by a clock that has been set back
        ({"pause_requested": True}, False),
    ],
)
def test_a_job_that_backs_off_or_pauses_is_not_started(fields: dict[str, Any], waits: bool) -> None:
    job = job_of("j", JobState.RECOVERING, **fields)
    assert is_waiting(job, snapshot_of([], [job])) is waits


@pytest.mark.parametrize(
    ("seconds", "waits"), [(-1.0, False), (1.0, True), (LONGEST_GROWTH_BACKOFF_S + 1, True), (3600.0, False)]
)
def test_newcomers_wait_no_longer_than_any_wait_lasts(seconds: float, waits: bool) -> None:
    job = job_of("j", JobState.RUNNING, grow_after=NOW + timedelta(seconds=seconds))
    assert backs_off(job, snapshot_of([node_of("n")], [job], {"j": [("n", 0)]})) is waits


@pytest.mark.parametrize("state", LIVE_STATES)
@pytest.mark.parametrize("resize", ["live", "restart", "never"])
def test_who_may_be_moved(state: JobState, resize: str) -> None:
    job = job_of("j", state, spec=spec_of("j", elastic={"resize": resize}))
    whole = snapshot_of([node_of("n")], [job], held={"j": [("n", 0), ("n", 1)]})
    assert is_movable(whole.jobs["j"], whole) is (state is JobState.RUNNING and resize != "never")
    left = replace(whole, held={SlotKey("n", 0): "j"})
    assert not is_movable(left.jobs["j"], left), "a generation that is ending was taken for a smaller one"


@pytest.mark.parametrize(("priority", "weight"), [(50, 1.0), (75, 2.0), (25, 0.5), (100, 4.0), (0, 0.25)])
def test_priority_doubles_the_weight_every_25_points(priority: int, weight: float) -> None:
    assert weight_of(job_of(spec=spec_of(priority=priority))) == pytest.approx(weight)


@pytest.mark.parametrize(
    ("state", "kept", "private"),
    [
        (NodeState.READY, 2, 0),
        (NodeState.CORDONED, 2, 2),
        (NodeState.DRAINING, 0, 0),
        (NodeState.DRAINED, 0, 0),
        (NodeState.LOST, 0, 0),
    ],
)
def test_what_may_be_kept(state: NodeState, kept: int, private: int) -> None:
    job = job_of("j", JobState.RUNNING)
    found = holding_of(job, snapshot_of([node_of("n", state=state)], [job], {"j": [("n", 0), ("n", 1)]}))
    assert (found.size, found.kind, len(found.keepable), found.private) == (2, "cpu", kept, private)
    assert found.whole is (kept == 2)


def test_a_slot_that_its_node_no_longer_has_cannot_be_kept() -> None:
    job = job_of("j", JobState.RUNNING)
    node = Node(id="n", name="n", state=NodeState.READY, slots={1: "cpu", 2: "cpu"})
    found = holding_of(job, snapshot_of([node], [job], {"j": [("n", 0), ("n", 1)]}))
    kept = (SlotKey("n", 1),)
    assert found == Holding(size=2, kind="cpu", keepable=kept, by_pool={"cpu": kept})
    assert not found.whole


def test_who_holds_nothing_keeps_nothing() -> None:
    job = job_of("j")
    assert holding_of(job, snapshot_of([], [job])) == Holding()


def test_a_plain_script_that_never_reports_is_not_held_back_for_ever() -> None:
    for age_s, tries in ((SILENT_S - 1, True), (SILENT_S, False)):
        job = job_of("j", JobState.RUNNING, age_s=age_s)
        assert explores(job, snapshot_of([node_of("n")], [job], {"j": [("n", 0)]})) is tries
    measured = {"j": (Measurement("cpu", 1, 100.0, 100),)}
    assert explores(job, snapshot_of([node_of("n")], [job], {"j": [("n", 0)]}, measured))


@pytest.mark.parametrize("fields", [{"pinned_size": 2}, {"spec": spec_of("j", elastic={"resize": "never"})}])
def test_who_is_to_have_one_size_tries_none(fields: dict[str, Any]) -> None:
    job = job_of("j", **fields)
    assert not explores(job, snapshot_of([], [job]))


@pytest.mark.parametrize(
    ("devices", "market", "names"),
    [
        ([], "on-demand", ["a100", "cpu"]),
        ([], "spot", ["a100 (spot)"]),
        ([], "mixed", ["a100", "a100 (spot)", "cpu"]),
        (["cpu"], "mixed", ["cpu"]),
        (["cpu"], "spot", []),
        (["h100", "a100"], "on-demand", ["a100"]),
        (["h100"], "mixed", []),
    ],
)
def test_only_pools_that_are_wanted_and_there(devices: list[str], market: str, names: list[str]) -> None:
    spec = spec_of("j", resources={"devices": devices}, market=market)
    pools = [Pool("a100"), Pool("a100", Market.SPOT), Pool("cpu")]
    assert [pool.name for pool in pools if pool.serves(spec)] == names


def test_a_machine_that_is_to_be_taken_away_is_left_at_once() -> None:
    job = job_of("j", JobState.RUNNING)
    nodes = [replace(node_of("gone"), reclaim_at=NOW + timedelta(seconds=120)), node_of("stays")]
    held = {"j": [("gone", 0), ("stays", 0)]}
    snapshot = snapshot_of(nodes, [job], held)
    assert holding_of(job, snapshot).keepable == (SlotKey("stays", 0),)
    assert snapshot.free == (SlotKey("stays", 1),)


@pytest.mark.parametrize(
    ("name", "class_"),
    [
        ("gpt-small-17", "gpt-small"),
        ("gpt2", "gpt"),
        ("sweep-3-12", "sweep"),
        ("17", "17"),
        ("resnet", "resnet"),
    ],
)
def test_a_class_is_a_name_without_the_number_of_a_run(name: str, class_: str) -> None:
    assert class_of(spec_of(name, project="vision")) == f"vision/{class_}"
