"""Forecasts of one job on any cluster: always an answer, times in order, and marks that mean what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.forecasts import Confidence, ConfigurationForecast, Mark, ScoredPrediction
from service.domain.allocation.inputs.round import build_round
from service.domain.cluster.snapshot import Measurement, PolicySetting, SlotKey, Snapshot
from service.domain.perf.forecast import Remaining, WorkSource
from service.usecases.jobs.curves import confidence_of, curve
from service.usecases.jobs.forecasts import alone, score_of, warnings_of
from service.usecases.ports.rounds import SlotCount
from service.usecases.rounds.policy_choice import kinds_of
from tests.unit.service.builders import NOW, clusters, job_of, node_of, spec_of


def left(samples: float = 1e6, spread: float = 0.0) -> Remaining:
    source = np.array([int(WorkSource.SCRIPT)])
    return Remaining(samples=np.array([samples]), spread=np.array([spread]), source=source)


def configurations_of(
    snapshot: Snapshot, job_id: str, work: Remaining | None = None
) -> list[ConfigurationForecast]:
    return curve(build_round(alone(snapshot, snapshot.jobs[job_id])), work or left())


def marked(configurations: list[ConfigurationForecast], mark: Mark) -> list[ConfigurationForecast]:
    return [one for one in configurations if mark in one.marks]


@settings(max_examples=25)
@given(clusters().filter(lambda one: bool(one.jobs)), st.sampled_from([np.nan, 0.0, 1.0, 1e9]))
def test_any_job_of_any_cluster_has_a_forecast(snapshot: Snapshot, samples: float) -> None:
    for job_id in list(snapshot.jobs)[:1]:
        found = configurations_of(snapshot, job_id, left(samples, 0.1))
        for one in found:
            assert one.speedup > 0
            if one.goodput is not None:
                assert one.goodput_low <= one.goodput <= one.goodput_high  # type: ignore[operator]
            if one.time_s is not None and one.time_p90_s is not None:
                assert 0 <= one.time_s <= one.time_p90_s
            if one.cost_usd is not None and one.cost_p90_usd is not None:
                assert 0 <= one.cost_usd <= one.cost_p90_usd
        assert len(marked(found, Mark.PRESENT)) <= 1
        if found:
            fastest = marked(found, Mark.FASTEST)
            assert [one.speedup for one in fastest] == [max(one.speedup for one in found)]
            assert [one.slots for one in marked(found, Mark.SMALLEST)] == [min(one.slots for one in found)]
            (knee,) = marked(found, Mark.KNEE)
            assert Mark.FRONT in knee.marks


def cluster(**fields: object) -> Snapshot:
    """A job on one of two slots of a node, measured there; the other slot is another job's."""
    job = job_of("j", spec=spec_of("j", elastic={"min": 1, "max": 4}, batch={"global": 64}))
    job = replace(job, allocation={"n": (0,)}, generation=1, newest_generation=1)
    one = Measurement("cpu", 1, 640.0, 1000, generation=1, global_batch=64, local_batch=64, step_s=0.1)
    held = {SlotKey("n", 0): "j", SlotKey("n", 1): "other"}
    nodes = {"n": node_of("n", 2), "m": node_of("m", 2, state=NodeState.CORDONED)}
    snapshot = Snapshot(now=NOW, nodes=nodes, jobs={"j": job}, held=held, measurements={"j": (one,)})
    return replace(snapshot, **fields)  # type: ignore[arg-type]


def test_what_others_hold_is_not_to_be_had() -> None:
    found = {one.slots: one for one in configurations_of(cluster(), "j")}
    assert found[1].why_not_now == ""
    assert Mark.PRESENT in found[1].marks
    assert found[2].why_not_now == "only 1 cpu slot is free or held by this job"


def test_costs_follow_the_prices_and_slot_hours_stand_in_for_them() -> None:
    priced = configurations_of(cluster(usd_per_slot_h={"cpu": 36.0}), "j")
    free = configurations_of(cluster(), "j")
    for one in priced:
        assert one.cost_usd == pytest.approx(one.time_s * one.slots * 0.01)  # type: ignore[operator]
    assert {one.cost_usd for one in free} == {0.0}
    assert [one.marks for one in priced] == [one.marks for one in free]


def test_a_measured_size_is_sure_and_others_less() -> None:
    found = {one.slots: one for one in configurations_of(cluster(), "j")}
    assert found[1].confidence is Confidence.HIGH
    assert found[1].goodput == pytest.approx(640, rel=0.02)
    assert found[1].time_s == pytest.approx(1e6 / 640, rel=0.02)


@pytest.mark.parametrize(
    ("goodput", "high", "expected"),
    [
        (100.0, 100.0, Confidence.HIGH),
        (100.0, 150.0, Confidence.MEDIUM),
        (100.0, 300.0, Confidence.LOW),
        (0.0, 0.0, Confidence.LOW),
        (100.0, 50.0, Confidence.LOW),
    ],
)
def test_confidence_is_the_width_of_the_interval(goodput: float, high: float, expected: Confidence) -> None:
    assert confidence_of(goodput, high) is expected


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, []),
        (
            {"resources": {"devices": ["h100", "a100"]}},
            ["no node has h100 or a100; kinds in this cluster: cpu"],
        ),
        (
            {"elastic": {"min": 5}},
            ["the job needs at least 5 slots of one kind, but the cluster has 2: it would wait"],
        ),
        ({"elastic": {"min": 1, "max": 5}}, ["the job gets at most 2 slots"]),
        ({"run": "torchrun train.py"}, ["run starts torchrun, but Headway is the launcher"]),
    ],
)
def test_warnings(fields: dict[str, object], says: list[str]) -> None:
    spec = spec_of("new", **fields)
    round_ = build_round(alone(cluster(), job_of("new", spec=spec)))
    found = warnings_of(spec, round_, knows_class=True)
    assert len(found) == len(says)
    assert all(text in warning for text, warning in zip(says, found, strict=True))
    assert any("default/new" in warning for warning in warnings_of(spec, round_, knows_class=False))


def test_predictions_are_scored() -> None:
    def one(predicted: float, measured: float) -> ScoredPrediction:
        return ScoredPrediction(
            generation=1,
            device_kind="cpu",
            slots=1,
            predicted=predicted,
            low=predicted / 2,
            high=predicted * 1.2,
            measured=measured,
        )

    score = score_of([one(100, 100), one(100, 80), one(100, 200)])
    assert (score.count, score.median_ratio, score.coverage) == (3, 1.0, pytest.approx(2 / 3))
    assert score.median_error == pytest.approx(0.25)
    assert score_of([]).model_dump() == {
        "count": 0,
        "median_ratio": None,
        "median_error": None,
        "p90_error": None,
        "coverage": None,
    }


def test_slots_are_counted_by_what_may_be_used_of_them() -> None:
    counts = [
        SlotCount(NodeState.READY, "cpu", 4, 1),
        SlotCount(NodeState.CORDONED, "cpu", 2, 2),
        SlotCount(NodeState.LOST, "cpu", 8, 0),
        SlotCount(NodeState.LOST, "a100", 8, 0),
    ]
    (one,) = kinds_of(counts, {"cpu": 0.5})
    assert (one.device_kind, one.slots, one.in_service, one.held, one.free) == ("cpu", 6, 4, 3, 3)
    assert one.usd_per_slot_h == 0.5


def test_slots_on_spot_are_counted_by_themselves_and_cost_what_their_nodes_cost() -> None:
    counts = [
        SlotCount(NodeState.READY, "cpu", 4, 1),
        SlotCount(NodeState.READY, "cpu", 1, 1, Market.SPOT, 0.1),
        SlotCount(NodeState.READY, "cpu", 3, 0, Market.SPOT, 0.2),
    ]
    firm, spot = kinds_of(counts, {"cpu": 0.5})
    assert (firm.market, firm.slots, firm.usd_per_slot_h) == (Market.ON_DEMAND, 4, 0.5)
    assert (spot.market, spot.slots, spot.free) == (Market.SPOT, 4, 3)
    assert spot.usd_per_slot_h == pytest.approx(0.175)


def test_a_forecast_is_at_the_batch_of_the_job_file_under_a_policy_that_keeps_it() -> None:
    job = job_of("new", spec=spec_of("new"))
    for name, keeps in (("elastic-fixed", True), ("goodput", False), ("of another version", False)):
        assert alone(replace(cluster(), policy=PolicySetting(name)), job).keeps_batch is keeps
