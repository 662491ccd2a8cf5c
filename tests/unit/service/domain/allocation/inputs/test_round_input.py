"""Fields of a policy's input: times, service, costs of changes, hysteresis of goodput, and the digest."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from headway.contract.values.markets import Market
from headway.contract.views.identity import ProjectQuota
from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.inputs.notes import Note
from service.domain.allocation.inputs.round import build_round
from service.domain.cluster.snapshot import Cap, Limit, PolicySetting, Served, Snapshot, Tenant
from service.domain.contention.costs import LIVE_CHANGE_S, RESTART_S
from service.domain.policies.framework.policy import RoundInput
from tests.unit.service.builders import NOW, clusters, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job, on, running_alone, speeds, spot


def given_of(snapshot: Snapshot) -> RoundInput:
    return build_round(snapshot).given


def goodput(snapshot: Snapshot) -> dict[int, float]:
    """The goodput of the first job by size."""
    round_ = build_round(snapshot)
    sizes = round_.columns.configurations.slots.tolist()
    return dict(zip(sizes, round_.given.goodput[0].tolist(), strict=True))


@pytest.mark.parametrize(
    ("state", "waited_s"),
    [(JobState.PENDING, 40.0), (JobState.RECOVERING, 40.0), (JobState.RUNNING, 0.0)],
)
def test_a_job_waits_since_it_last_held_slots(state: JobState, waited_s: float) -> None:
    job = elastic_job(state=state, age_s=40.0, submitted_at=NOW - timedelta(seconds=900))
    held = {"j": on("n", 0)} if state is JobState.RUNNING else None
    given = given_of(snapshot_of([node_of("n")], [job], held))
    assert given.waited_s.tolist() == [waited_s]
    assert given.age_s.tolist() == [900.0]


def test_a_clock_that_was_set_back_gives_no_negative_times() -> None:
    given = given_of(snapshot_of([node_of("n")], [elastic_job(age_s=-50.0)]))
    assert (given.waited_s.tolist(), given.age_s.tolist()) == ([0.0], [0.0])


def test_service_counts_once_by_device_kind() -> None:
    """The kind `cpu` has a pool on each market; the job's 70 s count at the first."""
    nodes = [node_of("g", kind="a100"), node_of("c"), spot("s")]
    snapshot = snapshot_of(nodes, [elastic_job(), elastic_job("k", age_s=1.0)])
    served = {"j": Served({"cpu": 70.0, "a100": 5.0, "tpu": 9.0}, 111.0)}
    given = given_of(replace(snapshot, served=served))
    assert given.configurations.kinds == ("a100", "cpu", "cpu (spot)")
    assert given.served_s.tolist() == [[5.0, 70.0, 0.0], [0.0, 0.0, 0.0]]
    assert given.served_slot_s.tolist() == [111.0, 0.0]


@pytest.mark.parametrize(("generation", "changes"), [(0, 0), (1, 0), (2, 1), (7, 6)])
def test_every_generation_after_the_first_is_a_change(generation: int, changes: int) -> None:
    assert given_of(running_alone(2, generation=generation)).changes.tolist() == [changes]


@pytest.mark.parametrize(
    ("fields", "cost_s"),
    [
        ({"live": True}, LIVE_CHANGE_S),
        ({"live": False}, RESTART_S),
        ({"live": False, "pinned_size": 4}, 0.0),
        ({"live": True, "progress": JobProgress(pause_s=0.2)}, 0.2),
    ],
)
def test_a_change_by_request_is_not_charged(fields: dict[str, Any], cost_s: float) -> None:
    assert given_of(running_alone(2, **fields)).change_s.tolist() == [cost_s]


@pytest.mark.parametrize("fields", [{"live": True}, {"live": False}, {"live": True, "pinned_size": 4}])
def test_a_stop_is_charged_as_a_measured_restart_also_where_changes_are_in_place(
    fields: dict[str, Any],
) -> None:
    progress = JobProgress(start_s=10.0, stop_s=2.0, pause_s=0.2)
    assert given_of(running_alone(2, progress=progress, **fields)).stop_s.tolist() == [12.0]


def test_weights_and_classes_are_those_of_the_jobs() -> None:
    jobs = [
        elastic_job("gpt-1", name="gpt-1", priority=100, age_s=3.0),
        elastic_job("bert-1", name="bert-1", priority=25, age_s=2.0),
        elastic_job("gpt-2", name="gpt-2", age_s=1.0),
    ]
    given = given_of(snapshot_of([node_of("n")], jobs))
    assert given.weight.tolist() == [4.0, 0.5, 1.0]
    first, other, same = given.job_class.tolist()
    assert first == same != other


def test_noise_does_not_make_a_job_shrink_but_a_clear_gain_does() -> None:
    """One slot is 3 % or 20 % faster than two."""
    for ratio, equal in ((1.03, True), (1.2, False)):
        found = goodput(running_alone(2, points=speeds((1, 100.0 * ratio), (2, 100.0)), high=2))
        assert (found[1] == found[2]) is equal


def test_a_young_job_sees_no_better_size_than_its_own() -> None:
    found = goodput(running_alone(2, points=speeds((1, 100.0), (2, 180.0), (4, 340.0)), age_s=3.0))
    assert max(found.values()) == found[2]
    assert found[1] < found[2]


def test_a_pinned_size_counts_a_hundred_times_as_much() -> None:
    points = speeds((2, 180.0), (4, 340.0))
    plain, pinned = (
        goodput(running_alone(2, points=points, **fields)) for fields in ({}, {"pinned_size": 4})
    )
    assert pinned[4] == pytest.approx(plain[4])
    assert pinned[2] == pytest.approx(0.01 * plain[2])


def test_a_configuration_beyond_the_limit_of_dollars_counts_half() -> None:
    nodes = (node_of("n", 4, usd_per_slot_h=1.0),)
    fields = {"high": 4, "progress": JobProgress(samples=0, total_samples=36_000)}
    snapshot = running_alone(4, nodes, speeds((1, 10.0), (2, 18.0), (4, 30.0)), **fields)
    rich, poor = (goodput(replace(snapshot, limits={"j": Limit(usd)})) for usd in (99.0, 1.2))
    assert poor[4] == pytest.approx(rich[4] / 2)
    assert poor[1] == pytest.approx(rich[1])


def test_a_job_without_any_speed_may_have_every_size() -> None:
    """The model finds no size possible for steps of fewer samples than ranks; the goodput is the size."""
    progress = JobProgress(global_batch=1, max_global_batch=1)
    found = goodput(running_alone(4, low=4, high=8, progress=progress))
    assert all(value > 0 for value in found.values())


def test_prices_of_markets_count_for_jobs_that_accept_both() -> None:
    nodes = [node_of("f", usd_per_slot_h=1.0), spot("s", usd_per_slot_h=0.25)]
    cheap = elastic_job(high=2, market="mixed", goal={"objective": "cost"})
    given = given_of(snapshot_of(nodes, [cheap]))
    assert given.thrift is not None
    firm = given.configurations.kind == 0
    assert set(given.thrift[0, firm].tolist()) == {0.25}
    assert given_of(snapshot_of(nodes, [elastic_job(high=2)])).thrift is None


def test_rows_of_slots_come_first_then_packing_budgets_and_quotas() -> None:
    nodes = [node_of("n", 4), node_of("m", 3)]
    jobs = [elastic_job(state=RUNNING, low=1, high=7), elastic_job("k", elastic={"resize": "never"})]
    snapshot = snapshot_of(nodes, jobs, {"j": on("n", 0)})
    snapshot = replace(
        snapshot,
        caps=(Cap("all", None, 5.0),),
        projects={"default": Tenant(ProjectQuota(max_slots=3)), "other": Tenant(ProjectQuota(slots=2))},
    )
    kinds = [row.name.split("/")[0] for row in given_of(snapshot).rows]
    assert kinds[0] == "slots"
    assert sorted(kinds, key=["slots", "packing", "budget", "quota", "firm"].index) == kinds
    assert {"budget", "quota", "firm"} <= set(kinds)


DIGESTED: dict[str, dict[str, Any]] = {
    "policy": {"policy": PolicySetting("max-min")},
    "parameter": {"policy": PolicySetting(parameters={"p": 0.5})},
    "price": {"usd_per_slot_h": {"cpu": 2.0}},
    "budget": {"caps": (Cap("all", None, 3.0),)},
    "service": {"served": {"j": Served({"cpu": 5.0}, 5.0)}},
    "speed": {"measurements": {"j": speeds((2, 50.0))}},
    "quota": {"projects": {"default": Tenant(ProjectQuota(max_slots=1))}},
    "guarantee": {"projects": {"default": Tenant(ProjectQuota(slots=4))}},
    "node": {"nodes": {"n": node_of("n", 7)}},
    "free node": {"nodes": {"n": node_of("n", 8), "m": node_of("m", 1, market=Market.SPOT)}},
}


@pytest.mark.parametrize("fields", DIGESTED.values(), ids=DIGESTED)
def test_the_digest_changes_with_every_part_of_the_input(fields: dict[str, Any]) -> None:
    snapshot = running_alone(2, points=speeds((2, 180.0)))
    assert build_round(snapshot).digest != build_round(replace(snapshot, **fields)).digest


def test_the_digest_does_not_depend_on_the_time_of_a_calm_round() -> None:
    """A running job has waited for no time, and nothing else in its input has a clock."""
    snapshot = running_alone(2, points=speeds((2, 180.0)))
    later = replace(snapshot, now=snapshot.now + timedelta(seconds=60))
    assert build_round(snapshot).digest == build_round(later).digest


@given(clusters())
@settings(max_examples=20)
def test_the_input_of_any_cluster_is_well_formed(snapshot: Snapshot) -> None:
    round_ = build_round(snapshot)
    given = round_.given
    jobs, columns = len(round_.jobs), len(round_.columns.parts)
    assert given.goodput.shape == given.allowed.shape == (jobs, columns)
    for name in (
        "current",
        "weight",
        "age_s",
        "waited_s",
        "served_slot_s",
        "changes",
        "change_s",
        "stop_s",
        "remaining",
    ):
        assert getattr(given, name).shape == (jobs,), name
    assert np.isfinite(given.goodput).all()
    assert (given.goodput >= 0).all()
    assert (given.waited_s >= 0).all()
    held = np.flatnonzero(given.current >= 0)
    assert (given.goodput[held, given.current[held]] > 0).all(), "a job can always stay where it runs"
    assert not given.allowed[round_.notes.codes == Note.NOT_ALLOWED].any()
    assert (given.allowed == np.isin(round_.notes.codes, (Note.OFFERED, Note.CURRENT))).all()
