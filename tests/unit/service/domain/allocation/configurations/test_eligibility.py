"""The jobs that a round decides about, the slots that they may keep, and which of them explore."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.eligibility import (
    Holding,
    backs_off,
    deciding_jobs,
    explores,
    has_come,
    holding_of,
    is_left_over,
    is_movable,
    is_silent,
    is_waiting,
    weight_of,
)
from service.domain.cluster.pools import Pool
from service.domain.cluster.snapshot import Measurement, Node, SlotKey
from service.domain.jobs.first_step import SILENT_S
from service.domain.jobs.job import class_of
from service.domain.jobs.retries import LONGEST_BACKOFF_S
from service.domain.jobs.survival import LONGEST_GROWTH_BACKOFF_S
from tests.unit.service.builders import LIVE_STATES, NOW, job_of, node_of, snapshot_of, spec_of


@pytest.mark.parametrize("state", LIVE_STATES)
def test_a_job_waits_in_two_states_and_only_without_slots(state: JobState) -> None:
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
def test_a_backoff_lasts_no_longer_than_the_longest_one(seconds: float, waits: bool) -> None:
    job = job_of("j", JobState.RUNNING, grow_after=NOW + timedelta(seconds=seconds))
    assert backs_off(job, snapshot_of([node_of("n")], [job], {"j": [("n", 0)]})) is waits


@pytest.mark.parametrize("state", LIVE_STATES)
@pytest.mark.parametrize("resize", ["live", "restart", "never"])
def test_a_running_job_may_be_moved_unless_its_size_never_changes(state: JobState, resize: str) -> None:
    job = job_of("j", state, spec=spec_of("j", elastic={"resize": resize}))
    whole = snapshot_of([node_of("n")], [job], held={"j": [("n", 0), ("n", 1)]})
    assert is_movable(whole.jobs["j"], whole) is (state is JobState.RUNNING and resize != "never")
    left = replace(whole, held={SlotKey("n", 0): "j"})
    assert not is_movable(left.jobs["j"], left), "a generation that is ending is no smaller one"


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
def test_slots_may_be_kept_by_the_state_of_their_node(state: NodeState, kept: int, private: int) -> None:
    job = job_of("j", JobState.RUNNING)
    found = holding_of(job, snapshot_of([node_of("n", state=state)], [job], {"j": [("n", 0), ("n", 1)]}))
    assert (found.size, found.kind, len(found.keepable)) == (2, "cpu", kept)
    assert sum(found.private_by_pool.values()) == private
    assert found.whole is (kept == 2)


def test_a_slot_that_its_node_no_longer_has_cannot_be_kept() -> None:
    job = job_of("j", JobState.RUNNING)
    node = Node(id="n", name="n", state=NodeState.READY, slots={1: "cpu", 2: "cpu"})
    found = holding_of(job, snapshot_of([node], [job], {"j": [("n", 0), ("n", 1)]}))
    kept = (SlotKey("n", 1),)
    assert found == Holding(size=2, kind="cpu", keepable=kept, by_pool={"cpu": kept})
    assert not found.whole


def test_a_job_without_slots_has_an_empty_holding() -> None:
    job = job_of("j")
    assert holding_of(job, snapshot_of([], [job])) == Holding()


def test_a_script_that_reports_nothing_for_a_while_no_longer_explores() -> None:
    for age_s, tries in ((SILENT_S - 1, True), (SILENT_S, False)):
        job = job_of("j", JobState.RUNNING, age_s=age_s)
        assert explores(job, snapshot_of([node_of("n")], [job], {"j": [("n", 0)]})) is tries
    measured = {"j": (Measurement("cpu", 1, 100.0, 100),)}
    assert explores(job, snapshot_of([node_of("n")], [job], {"j": [("n", 0)]}, measured))


@pytest.mark.parametrize("fields", [{"pinned_size": 2}, {"spec": spec_of("j", elastic={"resize": "never"})}])
def test_a_job_of_one_size_does_not_explore(fields: dict[str, Any]) -> None:
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
def test_a_pool_serves_a_spec_by_device_and_market(devices: list[str], market: str, names: list[str]) -> None:
    spec = spec_of("j", resources={"devices": devices}, market=market)
    pools = [Pool("a100"), Pool("a100", Market.SPOT), Pool("cpu")]
    assert [pool.name for pool in pools if pool.serves(spec)] == names


def test_slots_of_a_reclaimed_machine_cannot_be_kept() -> None:
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


@pytest.mark.parametrize(
    ("seconds", "come"),
    [(None, True), (-5.0, True), (0.0, True), (0.1, False), (20.0, False), (20.1, True), (1e6, True)],
)
def test_a_wait_ends_at_its_time_or_if_that_is_beyond_twice_the_longest_wait(
    seconds: float | None, come: bool
) -> None:
    moment = None if seconds is None else NOW + timedelta(seconds=seconds)
    assert has_come(moment, 10.0, NOW) is come


@pytest.mark.parametrize(
    ("size", "live", "left_over"),
    [
        (0, True, False),
        (3, True, True),
        (3, False, False),
        (4, True, False),
        (8, True, False),
        (9, True, True),
    ],
)
def test_a_loss_leaves_a_live_job_at_a_size_that_its_spec_forbids(
    size: int, live: bool, left_over: bool
) -> None:
    job = job_of("j", JobState.RUNNING, live=live, spec=spec_of("j", elastic={"min": 4, "max": 8}))
    assert is_left_over(job, size) is left_over


@pytest.mark.parametrize(
    ("state", "age_s", "silent"),
    [
        (JobState.RUNNING, SILENT_S, True),
        (JobState.RUNNING, SILENT_S - 0.1, False),
        (JobState.PENDING, 900.0, False),
        (JobState.STARTING, 900.0, False),
    ],
)
def test_only_a_running_job_is_silent(state: JobState, age_s: float, silent: bool) -> None:
    job = job_of("j", state, age_s=age_s)
    assert is_silent(job, snapshot_of([], [job])) is silent


def test_private_slots_are_counted_by_pool() -> None:
    job = job_of("j", JobState.RUNNING)
    nodes = [node_of("a", state=NodeState.CORDONED), node_of("b"), node_of("c", market=Market.SPOT)]
    held = {"j": [("a", 0), ("a", 1), ("b", 0), ("c", 1)]}
    found = holding_of(job, snapshot_of(nodes, [job], held))
    assert found.private_by_pool == {"cpu": 2}
    assert (found.size, found.whole) == (4, True)
    assert {pool: len(keys) for pool, keys in found.by_pool.items()} == {"cpu": 3, "cpu (spot)": 1}


def test_slots_of_a_second_kind_cannot_be_kept() -> None:
    job = job_of("j", JobState.RUNNING)
    nodes = [node_of("a"), node_of("b", kind="a100")]
    found = holding_of(job, snapshot_of(nodes, [job], {"j": [("a", 0), ("b", 0)]}))
    assert (found.kind, found.keepable, found.whole) == ("cpu", (SlotKey("a", 0),), False)


def test_jobs_are_decided_about_in_the_order_of_their_submission() -> None:
    jobs = [job_of(name, age_s=age_s) for name, age_s in (("c", 1.0), ("b", 5.0), ("a", 1.0))]
    jobs.append(job_of("paused", JobState.PAUSED, age_s=9.0))
    assert [job.id for job in deciding_jobs(snapshot_of([], jobs))] == ["b", "a", "c"]
