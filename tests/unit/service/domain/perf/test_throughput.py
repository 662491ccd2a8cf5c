"""Tests of step times against the explicit formula, and of the widening of intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf import throughput
from service.domain.perf.throughput import (
    GUESS_SPREAD,
    KNOTS,
    ThroughputModel,
    compute_time,
    log_spread,
    prior,
    step_time,
    sync_features,
)

seconds = st.floats(1e-4, 10.0)
anything = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, math.nan, math.inf, 1.0, 4.0]))


@st.composite
def models(draw: st.DrawFn, *, bent: bool = True) -> ThroughputModel:
    """Draw one model of shape (1,)."""
    low = draw(st.floats(1, 64))
    bend = draw(st.lists(st.floats(-0.5, 0.5), min_size=KNOTS, max_size=KNOTS)) if bent else [0.0] * KNOTS
    return ThroughputModel(
        alpha_c=np.array([draw(seconds)]),
        beta_c=np.array([draw(seconds)]) / 100,
        alpha_r=np.array([draw(seconds)]),
        beta_r=np.array([draw(seconds)]),
        alpha_n=np.array([draw(seconds)]),
        beta_n=np.array([draw(seconds)]),
        beta_p=np.array([draw(seconds)]),
        gamma=np.array([draw(st.floats(1, 10))]),
        bend=np.array([bend]),
        batch_low=np.array([low]),
        batch_high=np.array([low * draw(st.floats(1.1, 64))]),
        spread=np.array([draw(st.floats(0.01, 1))]),
        slots_tried=np.array([float(draw(st.integers(0, 64)))]),
        nodes_tried=np.array([float(draw(st.integers(0, 8)))]),
    )


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int]:
    """Draw a number of slots and of nodes."""
    nodes = draw(st.integers(1, 12))
    return nodes * draw(st.integers(1, 8)), nodes


def one_step(
    model: ThroughputModel, slots: float, nodes: float, batch: float, passes: float = 0
) -> tuple[float, float]:
    step, sync = step_time(
        model,
        slots=np.array([slots]),
        nodes=np.array([nodes]),
        local_batch=np.array([batch]),
        accumulation=np.array([passes]),
    )
    return step.item(), sync.item()


def written_out(model: ThroughputModel, slots: int, nodes: int, batch: float, passes: int) -> float:
    """Return the module's formula for one model, computed with plain numbers."""
    low, high = model.batch_low.item(), model.batch_high.item()
    where = min(max(math.log(batch / low) / math.log(high / low) * (KNOTS - 1), 0.0), KNOTS - 1.0)
    bend = float(np.interp(where, np.arange(KNOTS), model.bend[0]))
    compute = (model.alpha_c.item() + model.beta_c.item() * batch) * math.exp(bend)
    sync = 0.0
    if nodes > 1:
        sync = model.alpha_n.item() + model.beta_n.item() * math.log2(slots / 2)
        if nodes == 2:
            sync += model.beta_p.item() * math.log2(slots / nodes)
    elif slots > 1:
        sync = model.alpha_r.item() + model.beta_r.item() * math.log2(slots / 2)
    gamma = model.gamma.item()
    longer = max(compute, sync)
    last = longer * ((compute / longer) ** gamma + (sync / longer) ** gamma) ** (1 / gamma)
    return float(passes * compute + last)


@settings(max_examples=40, deadline=None)
@given(models(), shapes(), st.floats(0.5, 5000), st.integers(0, 5))
def test_a_step_time_is_the_formula_written_out(
    model: ThroughputModel, shape: tuple[int, int], batch: float, passes: int
) -> None:
    step, sync = one_step(model, *shape, batch, passes)
    assert step == pytest.approx(written_out(model, *shape, batch, passes), rel=2e-3)
    compute = compute_time(model, np.array([batch])).item()
    assert step == pytest.approx((passes + 1) * compute + sync, rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(models(bent=False), shapes(), st.floats(0.5, 5000), st.floats(1.01, 10))
def test_a_step_with_more_samples_or_slots_takes_no_less_time(
    model: ThroughputModel, shape: tuple[int, int], batch: float, factor: float
) -> None:
    slots, nodes = shape
    step, _ = one_step(model, slots, nodes, batch)
    assert 0 < step < math.inf
    assert one_step(model, slots, nodes, batch * factor)[0] >= step * (1 - 1e-6)
    assert one_step(model, 2 * slots, nodes, batch)[0] >= step * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(models(), anything, anything, anything, anything)
def test_a_shape_that_is_not_valid_takes_for_ever(
    model: ThroughputModel, slots: float, nodes: float, batch: float, passes: float
) -> None:
    step, sync = one_step(model, slots, nodes, batch, passes)
    assert step > 0
    assert sync >= 0
    possible = 1 <= nodes <= slots < 1e6 and 1 <= batch < 1e6 and 0 <= passes < 1e6
    if possible:
        assert math.isfinite(step)
    if not (1 <= nodes <= slots < math.inf and 0 < batch < math.inf and passes >= 0):
        assert (step, sync) == (math.inf, 0.0)
    spread = log_spread(
        model, slots=np.array([slots]), nodes=np.array([nodes]), local_batch=np.array([batch])
    )
    assert spread.item() >= model.spread.item() * (1 - 1e-9)


def test_many_models_at_once_have_the_step_times_of_each_alone() -> None:
    random = np.random.default_rng(1)
    jobs, columns, batches = 300, 20, 40
    model = prior(compute_s=random.uniform(0.1, 1, jobs), local_batch=np.full(jobs, 32.0))
    model = replace(model, bend=random.normal(0, 0.1, model.bend.shape), batch_high=model.batch_high * 8)
    slots = 2 ** random.integers(0, 7, columns)
    nodes = np.maximum(1, slots // 8)
    batch = random.uniform(1, 500, (jobs, columns, batches))
    assert batch.size > 2 * throughput._BLOCK, "several blocks"
    step, sync = step_time(model, slots=slots[:, None], nodes=nodes[:, None], local_batch=batch)
    assert step.shape == sync.shape == batch.shape
    for job in (0, 137, 299):
        alone, _ = step_time(
            model[job : job + 1],
            slots=slots[None, :, None],
            nodes=nodes[None, :, None],
            local_batch=batch[job : job + 1],
        )
        assert np.array_equal(step[job], alone[0])


def test_models_of_jobs_on_kinds_are_chosen_by_column() -> None:
    model = prior(compute_s=np.arange(1.0, 7).reshape(2, 3), local_batch=np.full((2, 3), 8.0))
    by_column = model[:, np.array([2, 0, 0, 1])]
    assert (by_column.shape, by_column.bend.shape) == ((2, 4), (2, 4, KNOTS))
    step, _ = step_time(by_column, slots=1, nodes=1, local_batch=np.full((1, 4), 8.0))
    assert step == pytest.approx(np.array([[3, 1, 1, 2], [6, 4, 4, 5.0]]))
    mixed = by_column.where(np.array([[True] * 4, [False] * 4]), by_column.faster(2.0))
    step, _ = step_time(mixed, slots=4, nodes=1, local_batch=np.full((1, 4), 8.0))
    assert step[1, 0] / step[0, 0] == pytest.approx(1.0, rel=1e-5)


def test_no_models_have_no_step_times() -> None:
    none = prior(compute_s=np.zeros(0), local_batch=np.zeros(0))
    step, sync = step_time(none, slots=np.ones((1, 3)), nodes=np.ones((1, 3)), local_batch=np.ones((1, 3)))
    assert step.shape == sync.shape == (0, 3)


@settings(max_examples=25, deadline=None)
@given(models(), shapes(), st.floats(0.5, 5000))
def test_intervals_widen_with_the_distance_from_what_was_tried(
    model: ThroughputModel, shape: tuple[int, int], batch: float
) -> None:
    slots, nodes = shape
    tried = replace(
        model,
        slots_tried=np.array([float(slots)]),
        nodes_tried=np.array([float(nodes)]),
        batch_low=np.array([batch]),
        batch_high=np.array([batch]),
    )

    def spread(slots: float, nodes: float, batch: float) -> float:
        found = log_spread(
            tried, slots=np.array([slots]), nodes=np.array([nodes]), local_batch=np.array([batch])
        )
        return float(found.item())

    here = spread(slots, nodes, batch)
    assert here == pytest.approx(model.spread.item())
    assert spread(1, 1, batch) == pytest.approx(here), "smaller is known"
    for one in ((2 * slots, nodes, batch), (slots, nodes, 2 * batch), (slots, nodes, batch / 2)):
        assert spread(*one) > here
    assert spread(8 * slots, 8 * nodes, batch) > spread(2 * slots, 2 * nodes, batch) > here


def model_of(**fields: float) -> ThroughputModel:
    """One model without a bend: compute of 1 s and 0.1 s a sample, and times of synchronisation that differ."""
    values = {
        "alpha_c": 1.0, "beta_c": 0.1, "alpha_r": 2.0, "beta_r": 0.5, "alpha_n": 4.0, "beta_n": 1.0, "beta_p": 0.25,
        "gamma": 1.0, "batch_low": 8.0, "batch_high": 8.0, "spread": 0.1, "slots_tried": 8.0, "nodes_tried": 4.0,
    } | fields  # fmt: skip
    arrays = {name: np.array([value]) for name, value in values.items()}
    return ThroughputModel(**arrays, bend=np.zeros((1, KNOTS)))


@pytest.mark.parametrize(
    ("slots", "nodes", "batch", "passes", "gamma", "expected"),
    [
        # Compute of 10 samples takes 2 s.
        (1, 1, 10, 0, 1.0, 2.0),
        (1, 1, 10, 3, 1.0, 8.0),
        (2, 1, 10, 0, 1.0, 2.0 + 2.0),
        (8, 1, 10, 0, 1.0, 2.0 + 2.0 + 2 * 0.5),
        (2, 2, 10, 0, 1.0, 2.0 + 4.0),  # one slot a node has no pair to share a link with
        (8, 2, 10, 0, 1.0, 2.0 + 4.0 + 2 * 1.0 + 2 * 0.25),
        (8, 4, 10, 0, 1.0, 2.0 + 4.0 + 2 * 1.0),
        (8, 4, 10, 2, 1.0, 3 * 2.0 + 6.0),
        (2, 1, 10, 0, 2.0, math.sqrt(8.0)),
        (2, 1, 30, 0, 2.0, math.sqrt(4.0**2 + 2.0**2)),
        (2, 1, 10, 1, 2.0, 2.0 + math.sqrt(8.0)),
    ],
)
def test_step_times_by_hand(
    slots: int, nodes: int, batch: int, passes: int, gamma: float, expected: float
) -> None:
    step, sync = one_step(model_of(gamma=gamma), slots, nodes, batch, passes)
    assert step == pytest.approx(expected, rel=1e-5)
    assert sync == pytest.approx(expected - (passes + 1) * (1.0 + 0.1 * batch), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("slots", "nodes", "expected"),
    [
        (1, 1, (0, 0, 0, 0, 0)),
        (2, 1, (1, 0, 0, 0, 0)),
        (8, 1, (1, 2, 0, 0, 0)),
        (2, 2, (0, 0, 1, 0, 0)),
        (16, 2, (0, 0, 1, 3, 3)),
        (16, 4, (0, 0, 1, 3, 0)),
        (64, 8, (0, 0, 1, 5, 0)),
    ],
)
def test_factors_of_synchronisation_by_hand(slots: int, nodes: int, expected: tuple[float, ...]) -> None:
    found = sync_features(np.array([float(slots)]), np.array([float(nodes)]))
    assert [float(one[0]) for one in found] == list(expected)


@pytest.mark.parametrize(
    ("batch", "bend", "factor"),
    [
        (8.0, {0: 0.3}, math.exp(0.3)),
        (1024.0, {7: -0.2}, math.exp(-0.2)),
        (16.0, {1: 0.5}, math.exp(0.5)),  # seven doublings from 8 to 1024: a knot at each
        (math.sqrt(8 * 16), {1: 0.5}, math.exp(0.25)),  # half-way between two knots
        (1.0, {0: 0.3}, math.exp(0.3)),  # beyond the range the last bend holds
        (1e6, {7: -0.2}, math.exp(-0.2)),
        (64.0, {0: 9.0, 7: 9.0}, 1.0),
    ],
)
def test_compute_bends_at_its_knots(batch: float, bend: dict[int, float], factor: float) -> None:
    knots = np.zeros((1, KNOTS))
    for index, value in bend.items():
        knots[0, index] = value
    model = replace(model_of(batch_low=8.0, batch_high=1024.0), bend=knots)
    found = compute_time(model, np.array([batch])).item()
    assert found == pytest.approx((1.0 + 0.1 * batch) * factor, rel=1e-4)


@pytest.mark.parametrize(
    ("fields", "slots", "nodes", "batch", "expected"),
    [
        pytest.param({}, 8, 4, 8, 0.1, id="all was tried"),
        pytest.param({}, 1, 1, 8, 0.1, id="less was tried"),
        pytest.param({}, 16, 4, 8, math.hypot(0.1, 0.06), id="twice the slots"),
        pytest.param({}, 16, 8, 8, math.hypot(0.1, 0.12), id="twice the slots and the nodes"),
        pytest.param({}, 8, 4, 32, math.hypot(0.1, 0.12), id="four times the batch"),
        pytest.param({}, 8, 4, 2, math.hypot(0.1, 0.12), id="a quarter of the batch"),
        pytest.param({"slots_tried": 2.0}, 4, 1, 8, math.hypot(0.1, 0.06, 0.2), id="first several slots"),
        pytest.param({"slots_tried": 3.0}, 6, 1, 8, math.hypot(0.1, 0.06), id="three slots show the growth"),
        pytest.param({"nodes_tried": 1.0}, 8, 2, 8, math.hypot(0.1, 0.06, 0.3), id="first several nodes"),
        pytest.param({"slots_tried": 0.0, "nodes_tried": 0.0}, 1, 1, 8, 0.1, id="one slot of a new kind"),
        pytest.param({}, math.nan, 4, 8, 0.1, id="slots that are not valid"),
    ],
)
def test_spreads_by_hand(
    fields: dict[str, float], slots: float, nodes: float, batch: float, expected: float
) -> None:
    found = log_spread(
        model_of(**fields), slots=np.array([slots]), nodes=np.array([nodes]), local_batch=np.array([batch])
    )
    assert found.item() == pytest.approx(expected)


def test_the_prior_by_hand() -> None:
    """Half of compute depends on the batch, and synchronisation takes a hundredth of it."""
    model = prior(compute_s=np.array([2.0, 4.0]), local_batch=16.0)
    assert model.shape == (2,)
    assert model.alpha_c.tolist() == [1.0, 2.0]
    assert model.beta_c.tolist() == [1 / 16, 2 / 16]
    assert model.alpha_r.tolist() == model.beta_r.tolist() == model.beta_p.tolist() == [0.02, 0.04]
    assert model.alpha_n.tolist() == model.beta_n.tolist() == pytest.approx([0.022, 0.044])
    assert model.batch_low.tolist() == model.batch_high.tolist() == [16.0, 16.0]
    assert model.slots_tried.tolist() == model.nodes_tried.tolist() == [0.0, 0.0]
    assert model.gamma.tolist() == [2.5, 2.5]
    assert model.spread.tolist() == [GUESS_SPREAD] * 2
    assert math.exp(GUESS_SPREAD) > 1.9
    assert not model.bend.any()


@settings(max_examples=25)
@given(models(), shapes(), st.floats(0.5, 500), st.floats(0.1, 10.0))
def test_a_faster_model_scales_every_step_and_nothing_else(
    model: ThroughputModel, shape: tuple[int, int], batch: float, factor: float
) -> None:
    faster = model.faster(factor)
    assert one_step(faster, *shape, batch, 1)[0] * factor == pytest.approx(
        one_step(model, *shape, batch, 1)[0], rel=1e-4
    )
    assert faster.gamma.tolist() == model.gamma.tolist()
    assert faster.slots_tried.tolist() == model.slots_tried.tolist()
