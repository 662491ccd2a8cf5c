"""Speed on slots of two kinds: numbers by hand, and that no other division of a batch is faster."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.mixed import expected_samples, mixed_plan, mixes_of
from service.domain.perf.tables import GoodputTable, JobModels, goodput_table, table_at_batches
from service.domain.perf.throughput import ThroughputModel, prior, step_time
from service.domain.policies.framework.policy import Configurations
from tests.unit.service.domain.perf.configurations import observed

PARTS = np.array([(1, 0), (2, 0), (0, 1), (0, 2), (1, 1), (2, 1), (1, 2), (2, 2)])
ANY = np.array([[0.0, math.inf]])


def configurations(parts: Any = PARTS, *, nodes: int = 1) -> Configurations:
    held = np.array(parts)
    return Configurations(
        kinds=("a", "b"),
        kind=(held[:, 1] > 0).astype(np.int64),
        slots=held.sum(axis=1),
        nodes=(held > 0).sum(axis=1) * nodes,
        usd_per_h=np.zeros(len(held)),
        parts=held,
    )


def models(
    fixed_s: tuple[float, float] = (0.5, 0.5),
    sample_s: tuple[float, float] = (0.005, 0.02),
    sync_s: tuple[float, float] = (0.0, 0.0),
    spread: tuple[float, float] = (0.2, 0.1),
) -> ThroughputModel:
    """Models (1, 2): kind `a` computes four times as many samples a second as kind `b`."""
    one = prior(compute_s=np.full((1, 2), 1.0), local_batch=np.full((1, 2), 100.0))
    none = np.zeros((1, 2))
    return replace(
        one,
        alpha_c=np.array([fixed_s]),
        beta_c=np.array([sample_s]),
        alpha_r=none,
        beta_r=none,
        alpha_n=np.array([sync_s]),
        beta_n=none,
        beta_p=none,
        gamma=none + 1.0,
        spread=np.array([spread]),
        slots_tried=none + 64.0,
        nodes_tried=none + 16.0,
        batch_low=none + 1.0,
        batch_high=none + 1000.0,
    )


def job(*, samples: float = 100.0, **given: Any) -> JobModels:
    fields = {
        "throughput": models(),
        "noise_scale": np.array([math.nan]),
        "reference_batch": np.array([samples]),
        "global_batch": np.array([samples]),
        "max_global": np.array([samples]),
        "max_local": np.full((1, 2), math.inf),
        "adapts": np.array([False]),
        "shares": ANY,
    }
    return JobModels(**{**fields, **given})


def table(**given: Any) -> GoodputTable:
    return goodput_table(job(**given), configurations())


def test_a_table_by_hand() -> None:
    """Two kinds divide 100 samples 80:20, 45:44:11, 67:17:17 and 40:40:10:10."""
    found = table()
    seconds = [1.0, 0.75, 2.5, 1.5, 0.9, 0.725, 0.835, 0.7]
    assert found.goodput[0] == pytest.approx([100 / one for one in seconds], rel=1e-4)
    assert found.local_batch[0].tolist() == [100, 50, 100, 50, 80, 45, 67, 40]
    assert found.accumulation[0].tolist() == [1] * 8
    assert found.global_batch[0].tolist() == [100] * 8
    assert found.efficiency[0].tolist() == [1.0] * 8
    # The wider interval of the two kinds counts.
    assert found.high[0, 4] == pytest.approx(found.goodput[0, 4] * math.exp(1.2816 * 0.2), rel=1e-4)
    assert found.low[0, 4] == pytest.approx(found.goodput[0, 4] / math.exp(1.2816 * 0.2), rel=1e-4)


@pytest.mark.parametrize(
    ("given", "step_s"),
    [
        pytest.param({}, 0.9, id="equal times"),
        pytest.param({"shares": np.array([[1.0, 1.0]])}, 1.5, id="even batches: the slow rank takes 50"),
        pytest.param({"shares": np.array([[0.6, 9.0]])}, 1.1, id="min_share: at least 30 for the slow rank"),
        pytest.param({"shares": np.array([[0.0, 1.2]])}, 1.3, id="max_share: at most 60 for the fast rank"),
        pytest.param({"throughput": models(sync_s=(0.1, 0.3))}, 1.2, id="the slower synchronisation"),
        pytest.param(
            {"max_local": np.array([[40.0, 100.0]])},
            1.3,
            id="two passes of 30 on the fast rank, 40 on the slow",
        ),
        pytest.param({"throughput": models(fixed_s=(0.5, 2.6))}, 2.62, id="every rank takes a sample"),
        pytest.param({"samples": 2.0}, 0.52, id="a sample for each rank"),
        pytest.param({"samples": 1.0}, math.inf, id="fewer samples than ranks"),
        pytest.param({"shares": np.array([[math.nan, math.nan]])}, math.inf, id="a job that mixes no kinds"),
    ],
)
def test_a_step_on_one_slot_of_each_kind(given: dict[str, Any], step_s: float) -> None:
    samples = given.get("samples", 100.0)
    assert table(**given).goodput[0, 4] == pytest.approx(samples / step_s, rel=2e-3)


def test_ranks_start_in_proportion_below_the_batches_that_were_tried() -> None:
    """At 100 samples, the smallest that was tried, the kinds take 1.0 and 2.5 s: 100 samples are divided 71.4 : 28.6."""
    for low, first in ((1.0, 80.0), (100.0, 100 * 2.5 / 3.5)):
        tried = replace(models(), batch_low=np.full((1, 2), low))
        (mixes,) = mixes_of(tried, np.full((1, 2), math.inf), ANY, configurations(), np.array([4]))
        samples = expected_samples(mixes, np.array([[100.0]]))
        assert [float(one[0, 0]) for one in samples] == pytest.approx([first, 100 - first], rel=1e-4)


def test_without_a_job_that_mixes_nothing_changes() -> None:
    alone = table(shares=None)
    assert (alone.goodput[0, 4:] == 0).all()
    assert (alone.goodput[0, :4] == table().goodput[0, :4]).all()


def test_a_measurement_corrects_its_own_mix_and_the_mixes_without_one() -> None:
    before = table()
    rows = (0, 4, 90.0, 100.0, 1000.0), (0, 7, 100 / 0.7, 100.0, 1000.0)
    after = goodput_table(job(), configurations(), observed(*rows))
    assert after.goodput[0, 4] == pytest.approx(90.0, rel=0.02)
    assert after.goodput[0, 7] == pytest.approx(100 / 0.7, rel=0.02)
    # The mean error of both measured mixes, of 1/0.9 samples/s predicted and of none.
    factor = math.exp(math.log(90 * 0.9 / 100) / 2)
    assert after.goodput[0, 5:7] == pytest.approx(before.goodput[0, 5:7] * factor, rel=0.01)
    assert after.low[0, 5:7] == pytest.approx(before.low[0, 5:7] * factor, rel=0.01)
    assert after.high[0, 4] / after.goodput[0, 4] < before.high[0, 4] / before.goodput[0, 4]
    assert (after.goodput[0, :4] == before.goodput[0, :4]).all()


def test_an_adaptive_job_grows_its_batch_on_a_mix() -> None:
    found = table(adapts=np.array([True]), max_global=np.array([1600.0]), noise_scale=np.array([math.inf]))
    assert found.global_batch[0, 4] == 1600
    assert found.goodput[0, 4] == pytest.approx(1600 / (0.5 + 1280 * 0.005), rel=1e-3)


def test_ranks_count_progress_on_a_mix_without_the_measured_effect() -> None:
    """At a noise scale of 1,500, 1,600 samples have half of the efficiency of 50; an exponent of 2 squares it."""
    known = {"adapts": np.array([True]), "max_global": np.array([1600.0]), "noise_scale": np.array([1500.0])}
    found = table_at_batches(
        job(samples=50.0, batch_effect=np.array([2.0]), **known), 0, np.array([1600]), configurations()
    )
    half = (1500 + 50) / (1500 + 1600)
    assert found.counted[0] == pytest.approx(half)
    assert found.efficiency[0] == pytest.approx(half**2)


def test_columns_stay_mixed_when_they_are_selected() -> None:
    chosen = configurations().of_columns(np.array([4, 0, 4]))
    assert chosen.mixed.tolist() == [True, False, True]
    assert [chosen.kind_name(column) for column in range(3)] == ["a:1+b:1", "a", "a:1+b:1"]


def test_a_table_at_given_batches_has_the_mixes() -> None:
    """80 of 100 samples take the fast rank 0.9 s; 160 of 200 take it 1.3 s."""
    known = {
        "adapts": np.array([True]),
        "max_global": np.array([1600.0]),
        "noise_scale": np.array([math.inf]),
    }
    found = table_at_batches(job(**known), 0, np.array([100, 200]), configurations())
    assert found.goodput[:, 4] == pytest.approx([100 / 0.9, 200 / 1.3], rel=1e-4)
    assert found.goodput[0] == pytest.approx(table().goodput[0], rel=1e-6)
    assert found.global_batch[:, 4].tolist() == [100, 200]


@settings(max_examples=60)
@given(
    st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
    st.tuples(st.floats(1e-3, 0.1), st.floats(1e-3, 0.1)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(8, 2000),
    st.floats(0.0, 1.0),
)
def test_no_division_is_faster(
    fixed_s: tuple[float, float],
    sample_s: tuple[float, float],
    counts: tuple[int, int],
    batch: int,
    place: float,
) -> None:
    one = models(fixed_s, sample_s)
    given_ = configurations([counts])
    (mixes,) = mixes_of(one, np.full((1, 2), math.inf), ANY, given_, np.array([0]))
    plan = mixed_plan(mixes, np.array([[float(batch)]]))
    first, second = (float(samples[0, 0]) for samples in plan.samples)
    assert counts[0] * first + counts[1] * second == pytest.approx(batch, rel=1e-6)
    assert min(first, second) >= 1 - 1e-9
    # Any other division of whole samples: the slower of the two kinds is at least as slow, but for rounding.
    mine = 1 + place * (batch - counts[1] - counts[0]) / counts[0]
    theirs = (batch - counts[0] * mine) / counts[1]
    longest = max(
        float(
            step_time(one[0:1, kind], slots=sum(counts), nodes=2, local_batch=np.array([[samples]]))[0][0, 0]
        )
        for kind, samples in ((0, mine), (1, theirs))
    )
    assert plan.step_s[0, 0] <= longest + max(sample_s) * 1.01 + 1e-5


def test_pairs_of_three_kinds_are_kept_apart() -> None:
    parts = np.array([(1, 1, 0), (1, 0, 1), (0, 2, 2), (2, 2, 0)])
    three = Configurations(
        kinds=("a", "b", "c"), kind=np.array([1, 2, 2, 1]), slots=parts.sum(axis=1), nodes=np.full(4, 2),
        usd_per_h=np.zeros(4), parts=parts,
    )  # fmt: skip
    wide = models()[:, [0, 1, 1]]
    found = list(mixes_of(wide, np.full((1, 3), math.inf), ANY, three, np.arange(4)))
    assert [(one.kinds, one.columns.tolist()) for one in found] == [
        ((0, 1), [0, 3]),
        ((0, 2), [1]),
        ((1, 2), [2]),
    ]
    assert [one.slots.tolist() for one in found] == [[2, 4], [2], [4]]
    assert three.kind_name(0) == "a:1+b:1"
    assert three.mixed.all()
