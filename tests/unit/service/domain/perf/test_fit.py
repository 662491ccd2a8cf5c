"""Tests of fits to synthetic measurements with known truth, and to measurements that cannot be true."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.fit import fit
from service.domain.perf.observations import Observations
from service.domain.perf.throughput import (
    PERCENTILE_90,
    ThroughputModel,
    compute_time,
    log_spread,
    prior,
    step_time,
)
from service.domain.shared.arrays import FloatArray, NumberArray

anything = st.floats() | st.sampled_from([0.0, -1.0, math.nan, math.inf, 1e-300, 1e300, 1.0, 4.0, 8.0])


def jobs(count: int, seed: int = 0) -> ThroughputModel:
    """Return true models whose synchronisation matters."""
    random = np.random.default_rng(seed)
    model = prior(compute_s=np.exp(random.normal(-1, 1, count)), local_batch=np.full(count, 32.0))
    share = random.uniform(10, 40, count)
    return replace(
        model,
        alpha_r=model.alpha_r * share,
        beta_r=model.beta_r * share / 2,
        alpha_n=model.alpha_n * share * 2,
        beta_n=model.beta_n * share,
        beta_p=model.beta_p * share,
        gamma=random.uniform(1.2, 4, count),
    )


def observe(
    model: ThroughputModel,
    shapes: list[tuple[int, int]],
    batches: list[int],
    *,
    noise: float = 0.0,
    seed: int = 0,
    count: float = 100.0,
) -> Observations:
    """Return the observations of every model on every shape (slots, nodes) with every local batch."""
    owners = model.shape[0]
    owner, shape, batch = (
        grid.ravel()
        for grid in np.meshgrid(np.arange(owners), np.arange(len(shapes)), batches, indexing="ij")
    )
    slots, nodes = np.array(shapes, float)[shape].T
    step, sync = step_time(model[owner], slots=slots, nodes=nodes, local_batch=batch)
    error = np.exp(np.random.default_rng(seed).normal(0, noise, len(owner)))
    return Observations(
        owner=owner,
        slots=slots,
        nodes=nodes,
        local_batch=batch.astype(float),
        accumulation=np.zeros(len(owner)),
        step_s=step * error,
        sync_s=sync * error,
        count=np.full(len(owner), count),
    )


def part(some: Observations, rows: NumberArray) -> Observations:
    return Observations(**{one.name: getattr(some, one.name)[rows] for one in fields(some)})


def joined(*some: Observations) -> Observations:
    return Observations(
        **{
            one.name: np.concatenate([getattr(each, one.name) for each in some])
            for one in fields(Observations)
        }
    )


def predicted(model: ThroughputModel, some: Observations) -> FloatArray:
    step, _ = step_time(
        model[some.owner],
        slots=some.slots,
        nodes=some.nodes,
        local_batch=some.local_batch,
        accumulation=some.accumulation,
    )
    return step


def same(one: ThroughputModel, other: ThroughputModel, rel: float = 1e-12) -> None:
    for field in fields(one):
        expected = pytest.approx(getattr(other, field.name), rel=rel, abs=1e-9)
        assert getattr(one, field.name) == expected, field.name


SMALL = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (8, 4)]


def test_foretells_larger_sizes_and_other_batches_from_noisy_small_ones() -> None:
    truth = jobs(40)
    model = fit(observe(truth, SMALL, [8, 32, 128], noise=0.03), 40)
    larger = observe(truth, [(16, 4), (32, 8), (64, 16)], [16, 64])
    error = np.abs(predicted(model, larger) / larger.step_s - 1)
    assert np.median(error) < 0.03
    assert np.quantile(error, 0.9) < 0.1


def test_without_knowing_how_long_synchronisation_took_too() -> None:
    truth = jobs(20)
    some = observe(truth, SMALL, [8, 32, 128], noise=0.01)
    model = fit(replace(some, sync_s=np.full(len(some.owner), math.nan)), 20)
    assert np.median(np.abs(predicted(model, some) / some.step_s - 1)) < 0.02


def test_compute_that_bends_is_followed() -> None:
    """Compute has a floor, which no straight line has."""
    batch = np.array([8.0, 16, 32, 64, 128, 256, 512])
    truth = np.maximum(0.1, batch / 640)
    some = replace(
        observe(jobs(1), [(1, 1)], [int(one) for one in batch]), step_s=truth, sync_s=np.zeros(len(batch))
    )
    error = np.abs(predicted(fit(some, 1), some) / truth - 1)
    assert np.median(error) < 0.03
    assert error.max() < 0.15, "a line misses the floor by 60 % or more"


def test_intervals_hold_what_they_say() -> None:
    """About eight of ten measurements lie between P10 and P90 if the form is right."""
    truth = jobs(60)
    model = fit(observe(truth, SMALL, [8, 32, 128], noise=0.1), 60)
    again = observe(truth, SMALL, [8, 32, 128], noise=0.1, seed=1)
    spread = log_spread(
        model[again.owner], slots=again.slots, nodes=again.nodes, local_batch=again.local_batch
    )
    inside = np.abs(np.log(predicted(model, again) / again.step_s)) < PERCENTILE_90 * spread
    assert 0.7 < inside.mean() < 0.92


def test_all_at_once_are_as_one_by_one() -> None:
    random = np.random.default_rng(3)
    some = observe(jobs(12), SMALL, [8, 32, 128], noise=0.05)
    some = part(some, random.permutation(len(some.owner))[:150])
    together = fit(some, 12)
    for owner in range(12):
        mine = part(some, np.flatnonzero(some.owner == owner))
        alone = fit(replace(mine, owner=np.zeros(len(mine.owner), np.int64)), 1)
        same(together[owner : owner + 1], alone, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(*[anything] * 7), max_size=6))
def test_whatever_is_reported_there_is_a_model(rows: list[tuple[float, ...]]) -> None:
    table = np.array(rows, float).reshape(len(rows), 7)
    good = observe(jobs(1), [(1, 1), (2, 1)], [32])
    some = joined(as_observations(table), good)
    model = fit(some, 2)
    for field in fields(model):
        values = getattr(model, field.name)
        assert np.isfinite(values).all(), field.name
        if field.name not in ("bend", "slots_tried", "nodes_tried"):
            assert (values > 0).all(), field.name
    step, _ = step_time(
        model, slots=np.full((1, 1), 4), nodes=np.ones((1, 1)), local_batch=np.full((1, 1), 32)
    )
    assert (step > 0).all()


def as_observations(table: FloatArray) -> Observations:
    slots, nodes, batch, passes, step, sync, count = table.T
    return Observations(
        owner=np.zeros(len(table), np.int64),
        slots=slots,
        nodes=nodes,
        local_batch=batch,
        accumulation=passes,
        step_s=step,
        sync_s=sync,
        count=count,
    )


def test_what_cannot_be_true_is_ignored() -> None:
    good = observe(jobs(1), SMALL, [8, 32])
    bad = [
        replace(good, **{name: np.full(len(good.owner), value)})
        for name, value in (
            ("step_s", math.nan), ("step_s", math.inf), ("step_s", -1.0), ("step_s", 0.0), ("step_s", 1e300),
            ("slots", 0.0), ("slots", math.nan), ("nodes", 0.0), ("nodes", 100.0), ("local_batch", -3.0),
            ("local_batch", math.inf), ("accumulation", -1.0), ("accumulation", math.nan), ("count", 0.0),
            ("count", math.nan), ("owner", -1), ("owner", 7),
        )
    ]  # fmt: skip
    same(fit(joined(*bad[:9], good, *bad[9:]), 1), fit(good, 1))


def test_a_synchronisation_that_cannot_be_true_leaves_the_step() -> None:
    good = observe(jobs(1), SMALL, [8, 32])
    unknown = fit(replace(good, sync_s=np.full(len(good.owner), math.nan)), 1)
    for bad in (math.inf, -1.0, 1e9):
        same(fit(replace(good, sync_s=np.full(len(good.owner), bad)), 1), unknown)


def test_without_a_measurement_there_is_the_prior() -> None:
    none = observe(jobs(0), SMALL, [8])
    same(fit(none, 2), prior(compute_s=np.ones(2), local_batch=np.full(2, 32.0)))
    known = jobs(1)
    same(fit(none, 3, known), known[np.zeros(3, np.int64)])
    assert fit(none, 0).shape == (0,)


def test_one_measurement_is_met_and_more_is_hoped() -> None:
    one = observe(jobs(1), [(1, 1)], [32])
    model = fit(one, 1)
    assert predicted(model, one) == pytest.approx(one.step_s, rel=1e-3)
    assert model.alpha_c == pytest.approx(32 * model.beta_c, rel=1e-3), "half of compute depends on the batch"
    many = replace(one, slots=np.array([64.0]), nodes=np.array([8.0]))
    assert predicted(model, many) < 1.1 * one.step_s
    narrow, wide = (
        log_spread(model, slots=each.slots, nodes=each.nodes, local_batch=each.local_batch)
        for each in (one, many)
    )
    assert wide > narrow + 0.3


def test_across_nodes_is_hoped_to_be_as_within_one() -> None:
    model = fit(observe(jobs(5), [(1, 1), (2, 1), (4, 1)], [8, 32]), 5)
    assert (model.alpha_n >= 1.09 * model.alpha_r).all()
    assert (model.alpha_n < 1.2 * model.alpha_r).all()


@pytest.mark.parametrize("across", [120.0, 100.0, 80.0, 30.0])
def test_a_slow_network_is_found_without_measured_synchronisation(across: float) -> None:
    """Two slots make 190 samples a second on one node, and fewer on two nodes."""
    rates = np.array([100.0, 190.0, across])
    some = Observations(
        owner=np.zeros(3, int),
        slots=np.array([1.0, 2, 2]),
        nodes=np.array([1.0, 1, 2]),
        local_batch=np.array([64.0, 32, 32]),
        accumulation=np.zeros(3),
        step_s=64 / rates,
        sync_s=np.full(3, np.nan),
        count=np.full(3, 500.0),
    )
    assert 64 / predicted(fit(some, 1), some) == pytest.approx(rates, rel=0.02)


def test_the_class_fills_in_what_was_never_tried() -> None:
    """Similar jobs, twice as fast, have shown their scaling."""
    truth = jobs(10)
    known = fit(observe(truth, SMALL, [8, 32, 128]), 10)
    slower = truth.faster(0.5)
    own = observe(slower, [(1, 1)], [32])
    larger = observe(slower, [(8, 2), (16, 4)], [32])
    hope, guided = fit(own, 10), fit(own, 10, replace(known, spread=np.full(10, 0.05)))
    assert np.abs(predicted(guided, larger) / larger.step_s - 1).max() < 0.05
    assert np.median(np.abs(predicted(hope, larger) / larger.step_s - 1)) > 0.2
    assert (guided.slots_tried == 8).all()


def test_own_measurements_win_over_the_class() -> None:
    truth, other = jobs(1, seed=1), jobs(1, seed=2)
    own = observe(truth, SMALL, [8, 32, 128])
    assert predicted(fit(own, 1, other), own) == pytest.approx(own.step_s, rel=0.05)


def test_long_measurements_count_more_but_not_in_proportion() -> None:
    one = observe(jobs(1), [(1, 1)], [32])

    def between(short: float, long: float) -> float:
        """Return the position of the fit between the short (0) and the long (1) measurement, which is 10 % slower."""
        slow = replace(one, step_s=1.1 * one.step_s, count=np.array([long]))
        model = fit(joined(replace(one, count=np.array([short])), slow), 1)
        return float(((predicted(model, one) / one.step_s - 1) / 0.1).item())

    assert between(100, 100) == pytest.approx(0.5, abs=0.05)
    assert between(1, 100) > 0.8
    assert 0.5 < between(100, 10_000) < 0.65


def test_one_absurd_step_does_not_spoil_the_others() -> None:
    good = observe(jobs(1), SMALL, [8, 32, 128])
    absurd = replace(part(good, np.array([4])), step_s=good.step_s[4:5] * 50)
    model = fit(joined(good, absurd), 1)
    assert np.median(np.abs(predicted(model, good) / good.step_s - 1)) < 0.05


def test_the_worse_the_form_fits_the_wider_the_interval() -> None:
    spreads = [
        fit(observe(jobs(1), SMALL, [8, 32, 128], noise=noise), 1).spread.item() for noise in (0.02, 0.1, 0.3)
    ]
    assert spreads == sorted(spreads)
    assert spreads[-1] > 4 * spreads[0]


@settings(max_examples=12, deadline=None)
@given(st.floats(0.01, 100.0), st.integers(0, 1000))
def test_a_clock_of_another_unit_gives_the_same_scaling(factor: float, seed: int) -> None:
    some = observe(jobs(2, seed), SMALL, [8, 64], noise=0.02)
    slower = replace(some, step_s=factor * some.step_s, sync_s=factor * some.sync_s)
    once, scaled = fit(some, 2), fit(slower, 2)
    assert predicted(scaled, some) == pytest.approx(factor * predicted(once, some), rel=0.01)
    assert scaled.spread == pytest.approx(once.spread, rel=0.05)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_the_order_of_measurements_does_not_matter(seed: int) -> None:
    some = observe(jobs(3), SMALL, [8, 64], noise=0.05)
    order = np.random.default_rng(seed).permutation(len(some.owner))
    same(fit(part(some, order), 3), fit(some, 3), rel=1e-5)


def test_owners_keep_their_index() -> None:
    some = observe(jobs(3), SMALL, [8, 64])
    moved = fit(replace(some, owner=2 * some.owner + 1), 7)
    found = fit(some, 3)
    same(moved[np.array([1, 3, 5])], found, rel=1e-9)
    unmeasured = prior(compute_s=np.ones(4), local_batch=np.full(4, 32.0))
    same(moved[np.array([0, 2, 4, 6])], unmeasured)


@pytest.mark.parametrize(
    ("shapes", "slots_tried", "nodes_tried"),
    [
        ([(1, 1)], 1.0, 1.0),
        ([(1, 1), (4, 1)], 4.0, 1.0),
        ([(8, 4), (2, 1)], 8.0, 4.0),
        ([(4, 4), (8, 2)], 8.0, 4.0),
    ],
)
def test_the_range_that_was_tried_is_that_of_the_measurements(
    shapes: list[tuple[int, int]], slots_tried: float, nodes_tried: float
) -> None:
    model = fit(observe(jobs(1), shapes, [16, 64]), 1)
    assert (model.slots_tried.item(), model.nodes_tried.item()) == (slots_tried, nodes_tried)
    assert (model.batch_low.item(), model.batch_high.item()) == (16.0, 64.0)


def test_the_range_of_the_class_counts_where_it_is_larger() -> None:
    known = replace(jobs(1), slots_tried=np.array([16.0]), nodes_tried=np.array([1.0]))
    model = fit(observe(jobs(1), [(1, 1), (4, 2)], [32]), 1, known)
    assert (model.slots_tried.item(), model.nodes_tried.item()) == (16.0, 2.0)


@pytest.mark.parametrize("accumulation", [0.0, 1.0])
def test_passes_of_a_step_are_compute_without_synchronisation(accumulation: float) -> None:
    truth = jobs(1)
    some = observe(truth, SMALL, [8, 32])
    step, sync = step_time(
        truth[some.owner],
        slots=some.slots,
        nodes=some.nodes,
        local_batch=some.local_batch,
        accumulation=np.full(len(some.owner), accumulation),
    )
    longer = replace(some, step_s=step, sync_s=sync, accumulation=np.full(len(some.owner), accumulation))
    model = fit(longer, 1)
    assert np.median(np.abs(predicted(model, longer) / step - 1)) < 0.03
    assert np.median(np.abs(predicted(model, some) / some.step_s - 1)) < 0.05


def test_measured_synchronisation_separates_it_from_compute() -> None:
    """On two slots alone, the step time does not show which part of it is synchronisation."""
    truth = jobs(8)
    some = observe(truth, [(2, 1)] * 8, [8, 16, 32, 64])
    compute = compute_time(truth[some.owner], some.local_batch)
    errors = [
        np.abs(np.log(compute_time(fit(one, 8)[one.owner], one.local_batch) / compute)).mean()
        for one in (some, replace(some, sync_s=np.full(len(some.owner), math.nan)))
    ]
    assert 2 * errors[0] < errors[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_s", 1e-7),
        ("step_s", 1e6),
        ("slots", 1e12),
        ("local_batch", 1e-6),
        ("local_batch", 1e12),
        ("count", 1.0),
    ],
)
def test_the_limits_of_a_measurement_are_believed(field: str, value: float) -> None:
    one = observe(jobs(1), [(1, 1)], [32])
    extreme = replace(one, **{field: np.array([value])}, sync_s=np.array([math.nan]))
    model = fit(extreme, 1)
    assert model.slots_tried.item() == extreme.slots.item()
    assert predicted(model, extreme) == pytest.approx(extreme.step_s, rel=0.05)
