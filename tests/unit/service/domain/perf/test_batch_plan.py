"""Tests of the choice of batches for many configurations: every whole batch is tried on small examples."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.batch_plan import (
    MAX_PASSES,
    MIN_GAIN,
    Cells,
    best_batch,
    efficiency_of,
    goodput_of,
    split,
)
from service.domain.perf.throughput import prior

FIELDS = ("slots", "nodes", "noise_scale", "reference", "present", "least", "most", "max_local")


def one_cell(*, compute_s: float = 1.0, sync_s: float = 0.0, at: float = 32.0, **fields: float) -> Cells:
    """One job on one configuration. Half of `compute_s` at `at` samples is the fixed time of a pass."""
    model = prior(compute_s=np.array([compute_s]), local_batch=np.array([at]))
    wire = {name: np.array([sync_s]) for name in ("alpha_r", "alpha_n")}
    model = replace(
        model, **wire, beta_r=np.zeros(1), beta_n=np.zeros(1), beta_p=np.zeros(1), gamma=np.ones(1)
    )
    values = {
        "slots": 1,
        "nodes": 1,
        "noise_scale": 1000.0,
        "reference": 64.0,
        "max_local": math.inf,
        **fields,
    }
    values = {
        "present": values["reference"],
        "least": max(values["reference"], values["slots"]),
        "most": values["reference"],
        **values,
    }
    return Cells(model=model, **{name: np.array([[values[name]]]) for name in FIELDS})


@pytest.mark.parametrize(
    ("batch", "slots", "max_local", "passes", "local"),
    [
        (64, 1, math.inf, 1, 64),
        (64, 4, math.inf, 1, 16),
        (65, 4, math.inf, 1, 17),  # the longest rank has one sample more
        (64, 4, 16, 1, 16),
        (65, 4, 16, 2, 9),
        (64, 1, 10, 7, 10),  # seven passes of at most ten
        (70, 1, 10, 7, 10),
        (71, 1, 10, 8, 9),
        (3, 8, 10, 1, 1),  # fewer samples than slots
        (1, 1, 1, 1, 1),
    ],
)
def test_a_batch_is_split_into_equal_passes(
    batch: int, slots: int, max_local: float, passes: int, local: int
) -> None:
    found = split(np.array(batch), np.array(slots), np.array(max_local))
    assert [float(one) for one in found] == [passes, local]


@settings(max_examples=60)
@given(st.integers(1, 10_000), st.integers(1, 64), st.integers(1, 500))
def test_passes_hold_the_batch_and_no_pass_is_superfluous(batch: int, slots: int, max_local: int) -> None:
    passes, local = (float(one) for one in split(np.array(batch), np.array(slots), np.array(max_local)))
    assert local <= max_local
    assert passes * local * slots >= batch
    assert (passes - 1) * max_local * slots < batch or passes == 1


@pytest.mark.parametrize(
    ("fields", "batch", "expected"),
    [
        # One slot: a pass over b samples takes 0.5 + b / 64 seconds.
        pytest.param({}, 64.0, 64 / 1.5, id="reference"),
        pytest.param({"most": 128.0}, 128.0, 128 / 2.5 * 1064 / 1128, id="larger batch"),
        pytest.param({"noise_scale": 0.0, "most": 128.0}, 128.0, 128 / 2.5 / 2, id="no noise"),
        pytest.param({"noise_scale": math.nan, "most": 128.0}, 128.0, 128 / 2.5 / 2, id="unknown noise"),
        pytest.param({"slots": 2, "sync_s": 0.5}, 64.0, 64 / (1.0 + 0.5), id="two slots"),
        pytest.param({"slots": 2, "nodes": 2, "sync_s": 2.0}, 64.0, 64 / 3.0, id="two nodes"),
        pytest.param({"max_local": 32.0}, 64.0, 64 / 2.0, id="two passes"),
        pytest.param({"slots": 2, "sync_s": 0.5, "max_local": 16.0}, 64.0, 64 / (0.75 * 2 + 0.5), id="one synchronisation"),
        pytest.param({"slots": 65, "least": 65.0}, 64.0, 0.0, id="fewer samples than slots"),
        pytest.param({}, 65.0, 0.0, id="above the largest batch"),
        pytest.param({"nodes": 2}, 64.0, 0.0, id="more nodes than slots"),
        pytest.param({"reference": 2048.0, "max_local": 2.0}, 2048.0, 2048 / (0.53125 * 1024), id="as many passes as can be"),
        pytest.param({"reference": 2049.0, "max_local": 2.0}, 2049.0, 0.0, id="a pass too many"),
    ],
)  # fmt: skip
def test_goodput_by_hand(fields: dict[str, float], batch: float, expected: float) -> None:
    assert goodput_of(one_cell(**fields), np.array([[batch]])).item() == pytest.approx(expected, rel=1e-5)
    assert MAX_PASSES == 1024


def test_goodput_of_several_batches_at_once_is_that_of_each() -> None:
    cells = one_cell(most=512.0)
    batches = np.array([[[64.0, 100.0, 512.0]]])
    together = goodput_of(cells, batches)[0, 0]
    assert together.tolist() == [goodput_of(cells, batches[..., one]).item() for one in range(3)]
    assert efficiency_of(cells, batches)[0, 0].tolist() == pytest.approx([1.0, 1064 / 1100, 1064 / 1512])


def every_batch(cells: Cells) -> dict[int, float]:
    """Goodput of every whole batch within the bounds."""
    least, most = int(cells.least.item()), int(cells.most.item())
    batches = np.arange(least, most + 1, dtype=float)
    found = goodput_of(cells, batches[None, None])[0, 0]
    return dict(zip(batches.astype(int).tolist(), found.tolist(), strict=True))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"most": 2048.0}, id="noise of 1,000 samples"),
        pytest.param({"most": 2048.0, "noise_scale": 50.0}, id="little noise"),
        pytest.param({"most": 2048.0, "noise_scale": math.inf}, id="all noise"),
        pytest.param({"most": 2048.0, "noise_scale": 0.0}, id="no noise"),
        pytest.param({"most": 2048.0, "max_local": 100.0}, id="passes of 100"),
        pytest.param({"most": 2048.0, "max_local": 7.0, "slots": 3, "sync_s": 2.0}, id="many passes"),
        pytest.param({"most": 2048.0, "slots": 8, "sync_s": 1.0}, id="eight slots"),
        pytest.param(
            {"most": 2048.0, "slots": 100, "nodes": 10, "sync_s": 3.0}, id="more slots than samples"
        ),
        pytest.param({"most": 70.0}, id="little room"),
        pytest.param({"most": 64.0}, id="no room"),
        pytest.param({"most": 512.0, "slots": 512}, id="one batch alone"),
    ],
)
def test_the_batch_is_nearly_as_good_as_the_best_of_all(fields: dict[str, float]) -> None:
    cells = one_cell(**fields)
    batch, goodput = (float(one.item()) for one in best_batch(cells))
    table = every_batch(cells)
    assert goodput == pytest.approx(table[int(batch)])
    best = max(table.values())
    moved = batch != cells.present.item()
    assert goodput >= best * 0.99 if moved else goodput * MIN_GAIN >= best * 0.99


@pytest.mark.parametrize(
    ("present", "stays"),
    [(64.0, False), (200.0, True), (400.0, True), (800.0, True), (1000.0, False), (2000.0, False)],
)
def test_the_present_batch_stays_unless_another_is_five_percent_better(present: float, stays: bool) -> None:
    cells = one_cell(most=2048.0, present=present, noise_scale=5000.0)
    batch, goodput = best_batch(cells)
    table = every_batch(cells)
    assert (batch.item() == present) is stays
    assert (max(table.values()) <= MIN_GAIN * table[int(present)]) is stays
    assert goodput.item() == pytest.approx(table[int(batch.item())])


def test_where_no_batch_is_possible_there_is_no_goodput() -> None:
    _, goodput = best_batch(one_cell(reference=100.0, slots=200))
    assert goodput.item() == 0.0
    _, goodput = best_batch(one_cell(reference=100.0, slots=50, nodes=60))
    assert goodput.item() == 0.0


def drawn_cells(seed: int, jobs: int = 3, columns: int = 4) -> Cells:
    """Random jobs on sizes of one kind."""
    draw = np.random.default_rng(seed)
    slots = np.array([[1, 2, 4, 16]])[:, :columns]
    reference = draw.integers(4, 200, (jobs, 1)).astype(float)
    model = prior(compute_s=draw.uniform(0.05, 1, jobs), local_batch=draw.uniform(4, 64, jobs))
    return Cells(
        model=replace(model, alpha_r=draw.uniform(0.01, 0.5, jobs), gamma=draw.uniform(1, 4, jobs)),
        slots=slots,
        nodes=np.maximum(1, slots // 8),
        noise_scale=draw.uniform(1, 1e4, (jobs, 1)),
        reference=reference,
        present=np.broadcast_to(reference, (jobs, columns)),
        least=np.maximum(reference, slots),
        most=reference * draw.integers(1, 20, (jobs, 1)),
        max_local=np.floor(draw.uniform(4, 100, (jobs, 1))),
    )


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_a_chosen_batch_is_within_its_bounds_and_never_worse_than_the_present_one(seed: int) -> None:
    cells = drawn_cells(seed)
    batch, goodput = best_batch(cells)
    present = cells.present
    moved = batch != present
    assert ((batch >= cells.least) & (batch <= cells.most))[moved].all()
    assert (goodput >= goodput_of(cells, present) * (1 - 1e-9)).all()
    assert (goodput > MIN_GAIN * goodput_of(cells, present))[moved].all()
    assert goodput == pytest.approx(goodput_of(cells, batch))


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_jobs_together_have_the_batches_of_each_alone(seed: int) -> None:
    cells = drawn_cells(seed)
    together, _ = best_batch(cells)
    for job in range(3):
        part: dict[str, Any] = {
            name: value[job : job + 1] if len(value) > 1 else value
            for name, value in ((name, getattr(cells, name)) for name in FIELDS)
        }
        alone, _ = best_batch(Cells(model=cells.model[job : job + 1], **part))
        assert alone[0].tolist() == together[job].tolist()
