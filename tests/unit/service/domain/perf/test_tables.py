"""The goodput table against direct loops over batches, and what measurements and bad input do to it."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.batch_plan import MAX_PASSES, MIN_GAIN
from service.domain.perf.efficiency import efficiency
from service.domain.perf.tables import GoodputTable, JobModels, goodput_table
from service.domain.perf.throughput import ThroughputModel, log_spread, prior, step_time
from service.domain.policies.framework.policy import Configurations
from tests.unit.service.builders import wild_floats
from tests.unit.service.domain.perf.configurations import CONFIGURATIONS, SLOTS, WIDTH, observed


def models_of(jobs: int, seed: int = 0, **given: Any) -> JobModels:
    """Random jobs that adapt."""
    draw = np.random.default_rng(seed)
    shape = (jobs, 2)
    throughput = replace(
        prior(compute_s=draw.uniform(0.02, 0.5, shape), local_batch=draw.uniform(4, 64, shape)),
        alpha_r=draw.uniform(0.001, 0.1, shape),
        alpha_n=draw.uniform(0.01, 0.3, shape),
        beta_n=draw.uniform(0.0, 0.1, shape),
        gamma=draw.uniform(1.0, 4.0, shape),
        spread=draw.uniform(0.02, 0.3, shape),
        slots_tried=np.full(shape, 64.0),
        nodes_tried=np.full(shape, 16.0),
    )
    reference = draw.integers(8, 200, jobs).astype(float)
    fixed = {
        "throughput": throughput,
        "noise_scale": reference * np.exp(draw.normal(0.5, 1.5, jobs)),
        "reference_batch": reference,
        "global_batch": reference.copy(),
        "max_global": reference * draw.integers(1, 20, jobs),
        "max_local": np.floor(draw.uniform(4, 100, shape)),
        "adapts": np.ones(jobs, bool),
    }
    return JobModels(**{**fixed, **given})


def goodput_at(models: JobModels, batch: np.ndarray) -> np.ndarray:
    """The definition, for one batch in each cell (J, C), in whatever passes a slot needs for it."""
    kind = CONFIGURATIONS.kind
    longest = np.ceil(batch / SLOTS)
    passes = np.maximum(1, np.ceil(longest / models.max_local[:, kind]))
    seconds, _ = step_time(
        models.throughput[:, kind],
        slots=SLOTS[None],
        nodes=CONFIGURATIONS.nodes[None],
        local_batch=np.ceil(longest / passes),
        accumulation=passes - 1,
    )
    return batch / seconds * efficiency(batch, models.reference_batch[:, None], models.noise_scale[:, None])


def consistent(models: JobModels, table: GoodputTable) -> None:
    """Check the invariants of every table."""
    for one in fields(table):
        values = getattr(table, one.name)
        assert values.shape == (models.adapts.size, WIDTH)
        assert np.isfinite(values).all()
        assert (values >= 0).all()
        assert ((values > 0) == (table.goodput > 0)).all() or one.name == "low"
    assert (table.efficiency <= 1.0).all()
    assert (table.low <= table.goodput).all()
    assert (table.goodput <= table.high).all()
    runs = table.goodput > 0
    assert (table.global_batch >= SLOTS)[runs].all()
    assert (table.local_batch * table.accumulation * SLOTS >= table.global_batch)[runs].all()
    assert (table.accumulation <= MAX_PASSES).all()


def test_a_fixed_batch_is_divided_over_slots_and_passes() -> None:
    models = models_of(6, adapts=np.zeros(6, bool))
    table = goodput_table(models, CONFIGURATIONS)
    consistent(models, table)
    reference = np.broadcast_to(models.reference_batch[:, None], (6, WIDTH))
    runs = reference >= SLOTS
    np.testing.assert_allclose(table.goodput, np.where(runs, goodput_at(models, reference), 0.0), rtol=1e-5)
    np.testing.assert_array_equal(table.global_batch, np.where(runs, reference, 0))
    assert (table.local_batch <= models.max_local[:, CONFIGURATIONS.kind]).all()
    np.testing.assert_array_equal(table.efficiency, runs)


def test_the_interval_is_that_of_the_model() -> None:
    models = models_of(3)
    table = goodput_table(models, CONFIGURATIONS)
    spread = log_spread(
        models.throughput[:, CONFIGURATIONS.kind],
        slots=SLOTS[None],
        nodes=CONFIGURATIONS.nodes[None],
        local_batch=table.local_batch,
    )
    runs = table.goodput > 0
    np.testing.assert_allclose(table.high[runs], (table.goodput * np.exp(1.2816 * spread))[runs])
    np.testing.assert_allclose(table.low[runs], (table.goodput / np.exp(1.2816 * spread))[runs])


def test_the_batch_is_nearly_the_best_of_all() -> None:
    """As good as the fifty batches that Pollux tries, which lose up to 4 %."""
    jobs = 80
    models = models_of(jobs)
    table = goodput_table(models, CONFIGURATIONS)
    consistent(models, table)
    slots, most = SLOTS[None], models.max_global[:, None]
    least = np.maximum(models.reference_batch[:, None], slots)
    best = np.zeros(least.shape)
    for share in np.linspace(0.0, 1.0, 300):
        goodput = goodput_at(models, np.rint(least ** (1 - share) * most**share))
        best = np.maximum(best, np.where(least <= most, goodput, 0.0))
    assert ((table.goodput > 0) == (best > 0)).all()
    runs = best > 0
    batch = table.global_batch
    assert ((batch >= least) & (batch <= most))[runs].all()
    at_plan = goodput_at(models, np.maximum(batch, 1).astype(float))
    np.testing.assert_allclose(table.goodput[runs], at_plan[runs], rtol=1e-5)
    changed = runs & (batch != models.global_batch[:, None])
    assert changed.mean() > 0.15
    loss = 1 - table.goodput[changed] / best[changed]
    assert loss.mean() < 0.001
    assert loss.max() < 0.05
    assert (table.goodput >= best / MIN_GAIN * 0.95)[runs & ~changed].all()


def test_the_present_batch_stays_unless_another_is_clearly_better() -> None:
    models = models_of(40, max_local=np.full((40, 2), np.inf))
    free = goodput_table(models, CONFIGURATIONS)
    here = goodput_table(replace(models, global_batch=free.global_batch[:, 3].astype(float)), CONFIGURATIONS)
    np.testing.assert_array_equal(here.global_batch[:, 3], free.global_batch[:, 3])
    changed = here.global_batch != free.global_batch
    assert changed.any()
    for job, column in np.argwhere(changed)[:20]:
        if here.global_batch[job, column] == free.global_batch[job, 3]:
            assert here.goodput[job, column] * MIN_GAIN >= free.goodput[job, column]


def test_much_noise_makes_large_batches_and_none_the_smallest() -> None:
    free = np.full((1, 2), np.inf)
    for noise, expected in ((math.inf, 1600), (0.0, 100), (math.nan, 100)):
        models = models_of(
            1,
            noise_scale=np.array([noise]),
            reference_batch=np.array([100.0]),
            global_batch=np.array([100.0]),
            max_global=np.array([1600.0]),
            max_local=free,
        )
        table = goodput_table(models, CONFIGURATIONS)
        assert table.global_batch[0, 4] == pytest.approx(expected, rel=0.15), noise


def test_the_effect_of_the_batch_that_was_seen_counts() -> None:
    models = models_of(20, max_local=np.full((20, 2), np.inf))
    usual, harmful, harmless = (
        goodput_table(replace(models, batch_effect=np.full(20, effect)), CONFIGURATIONS)
        for effect in (1.0, 4.0, -1.0)
    )
    assert (usual.global_batch == goodput_table(models, CONFIGURATIONS).global_batch).all()
    assert harmful.global_batch.sum() < usual.global_batch.sum() < harmless.global_batch.sum()
    assert (harmful.goodput <= usual.goodput * (1 + 1e-9)).all()
    assert usual.counted == pytest.approx(usual.efficiency), "the ranks count by the noise alone"
    assert harmful.counted**4 == pytest.approx(harmful.efficiency)
    assert harmless.counted ** (-1) == pytest.approx(harmless.efficiency, nan_ok=True)


def test_ranks_count_by_the_effect_of_their_last_order() -> None:
    models = replace(models_of(20), batch_effect=np.full(20, 2.0))
    known, alone = (
        goodput_table(replace(models, counted_effect=effect), CONFIGURATIONS)
        for effect in (np.full(20, 2.0), None)
    )
    assert known.counted == pytest.approx(known.efficiency)
    assert (alone.efficiency == known.efficiency).all()
    assert alone.counted**2 == pytest.approx(known.counted)


def test_a_batch_that_no_size_can_meet_is_worth_nothing() -> None:
    models = models_of(
        1,
        adapts=np.array([False]),
        reference_batch=np.array([4096.0 * 8]),
        max_local=np.array([[2.0, math.inf]]),
    )
    table = goodput_table(models, CONFIGURATIONS)
    assert (table.goodput[0] > 0).tolist() == [False] * 4 + [True] * 4
    assert table.accumulation[0, 4] == 1024
    assert table.local_batch[0, 7] == 512


def test_a_job_of_unknown_batch_scales_with_its_slots() -> None:
    unknown = np.array([math.nan])
    models = models_of(1, reference_batch=unknown, global_batch=unknown, max_global=unknown)
    table = goodput_table(models, CONFIGURATIONS)
    consistent(models, table)
    assert table.global_batch[0].tolist() == SLOTS.tolist()
    assert (table.goodput > 0).all()
    known_now = replace(models, global_batch=np.array([64.0]))
    assert (goodput_table(known_now, CONFIGURATIONS).global_batch[0] == 64).all()


def test_every_job_has_its_own_row_however_many_there_are() -> None:
    jobs = 2_000
    models = models_of(jobs, adapts=np.arange(jobs) % 3 > 0)
    table = goodput_table(models, CONFIGURATIONS)
    consistent(models, table)
    some = np.array([0, 1, 999, 1_999])
    part = JobModels(
        **{
            one.name: None if getattr(models, one.name) is None else getattr(models, one.name)[some]
            for one in fields(models)
        }
    )
    few = goodput_table(part, CONFIGURATIONS)
    for one in fields(table):
        np.testing.assert_allclose(getattr(table, one.name)[some], getattr(few, one.name), rtol=1e-6)


def test_a_measurement_pulls_its_own_cell_the_more_the_longer_it_is() -> None:
    models = models_of(2, adapts=np.zeros(2, bool))
    before = goodput_table(models, CONFIGURATIONS)
    reference, speed = models.reference_batch[1], before.goodput[1, 2]
    pulls, widths = [], []
    for steps in (1.0, 20.0, 400.0):
        after = goodput_table(models, CONFIGURATIONS, observed((1, 2, 1.5 * speed, reference, steps)))
        others = np.ones((2, WIDTH), bool)
        others[1, 2] = False
        np.testing.assert_array_equal(after.goodput[others], before.goodput[others])
        pulls.append(after.goodput[1, 2] / speed)
        widths.append(after.high[1, 2] / after.low[1, 2])
    assert 1.0 < pulls[0] < pulls[1] < pulls[2] < 1.5
    assert before.high[1, 2] / before.low[1, 2] > widths[0] > widths[1] > widths[2]
    assert pulls[2] > 1.4


def test_a_measurement_with_another_batch_says_less() -> None:
    models = models_of(1, adapts=np.zeros(1, bool), max_local=np.full((1, 2), np.inf))
    plain, reference = goodput_table(models, CONFIGURATIONS), models.reference_batch[0]
    widths = []
    for batch in (reference, reference * 16):
        seconds, _ = step_time(
            models.throughput[:, 0], slots=8, nodes=2, local_batch=math.ceil(batch / 8), accumulation=0
        )
        after = goodput_table(models, CONFIGURATIONS, observed((0, 3, batch / seconds[0], batch, 1000)))
        assert after.goodput[0, 3] == pytest.approx(plain.goodput[0, 3], rel=1e-5), "as predicted"
        widths.append(after.high[0, 3] / after.low[0, 3])
    assert widths[0] < widths[1] <= plain.high[0, 3] / plain.low[0, 3]


def test_measurements_that_cannot_be_true_change_nothing() -> None:
    models = models_of(2)
    before = goodput_table(models, CONFIGURATIONS)
    wrong = observed(
        *((0, 1, speed, 64, 10) for speed in (math.nan, math.inf, -1.0, 0.0, 1e300)),
        *((0, 1, 10.0, batch, 10) for batch in (math.nan, math.inf, 0.0, -5.0)),
        *((0, 1, 10.0, 64, steps) for steps in (math.nan, math.inf, 0.0, -5.0)),
        *((job, column, 10.0, 64, 10) for job, column in ((-1, 0), (2, 0), (0, -1), (0, WIDTH))),
    )
    after = goodput_table(models, CONFIGURATIONS, wrong)
    for one in fields(before):
        np.testing.assert_array_equal(getattr(before, one.name), getattr(after, one.name))


@settings(max_examples=25)
@given(st.data())
def test_whatever_is_reported_there_is_a_table(data: st.DataObject) -> None:
    wild = st.one_of(wild_floats, st.floats(1, 1000))

    def draw(*shape: int) -> np.ndarray:
        size = math.prod(shape)
        return np.array(data.draw(st.lists(wild, min_size=size, max_size=size))).reshape(shape)

    models = models_of(
        2,
        noise_scale=draw(2),
        reference_batch=draw(2),
        global_batch=draw(2),
        max_global=draw(2),
        max_local=draw(2, 2),
        adapts=np.array(data.draw(st.lists(st.booleans(), min_size=2, max_size=2))),
    )
    reports = [(job, column, *draw(3)) for job, column in ((0, 0), (1, 7), (1, 7))]
    consistent(models, goodput_table(models, CONFIGURATIONS, observed(*reports)))


def test_broken_models_make_no_table_but_zeros() -> None:
    models = models_of(1)
    broken = ThroughputModel(
        **{
            one.name: np.full_like(getattr(models.throughput, one.name), math.nan)
            for one in fields(ThroughputModel)
        }
    )
    table = goodput_table(replace(models, throughput=broken), CONFIGURATIONS)
    assert not table.goodput.any()
    consistent(models, table)


def test_a_configuration_without_slots_is_none() -> None:
    empty = replace(CONFIGURATIONS, slots=np.where(SLOTS == 3, 0, SLOTS))
    assert (goodput_table(models_of(1), empty).goodput[0] > 0).tolist() == (SLOTS != 3).tolist()


def test_no_jobs_and_no_columns() -> None:
    assert goodput_table(models_of(0), CONFIGURATIONS).goodput.shape == (0, WIDTH)
    nothing = np.zeros(0, np.int64)
    none = Configurations(kinds=("a", "b"), kind=nothing, slots=nothing, nodes=nothing, usd_per_h=np.zeros(0))
    assert goodput_table(models_of(3), none, observed((0, 0, 1.0, 1, 1))).goodput.shape == (3, 0)
