"""Tests with synthetic kinds of known truth: links and compute differ, each by its own factor."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.throughput import ThroughputModel, log_spread, prior, step_time
from service.domain.perf.transfer import across_kinds, additive, borrow
from service.domain.shared.arrays import FloatArray

ELSE = [0, 1, 2, 5, 6]
"""Results of `steps` except two nodes, whose slowdown belongs to the kind, so that only other jobs show it."""
SYNC = ("alpha_r", "beta_r", "alpha_n", "beta_n", "beta_p")


def cluster(jobs: int, *, compute: list[float], links: list[float], seed: int = 0) -> ThroughputModel:
    """Return true models (jobs, kinds): kind k takes `compute[k]` times the compute and `links[k]` times the sync."""
    random = np.random.default_rng(seed)
    one = prior(compute_s=random.uniform(0.1, 1, jobs), local_batch=np.full(jobs, 32.0))
    within = one.alpha_r * random.uniform(20, 100, jobs)
    sync = {
        "alpha_r": within,
        "beta_r": within / 3,
        "alpha_n": 2 * within,
        "beta_n": within,
        "beta_p": within / 2,
    }
    one = replace(one, **sync, gamma=random.uniform(1.2, 4, jobs), spread=np.full(jobs, 0.05))
    grid = one[np.repeat(np.arange(jobs)[:, None], len(compute), axis=1)]
    scaled = {name: getattr(grid, name) * links for name in SYNC}
    scaled |= {name: getattr(grid, name) * compute for name in ("alpha_c", "beta_c")}
    most = np.full((jobs, len(compute)), 16.0)
    return replace(grid, **scaled, slots_tried=most, nodes_tried=most / 4)


def tried(models: ThroughputModel, row: int, kind: int, *, slots: int, nodes: int) -> ThroughputModel:
    """Return the models as if the job had tried at most this size on the kind, so that the rest is prior."""
    mask = np.ones(models.shape, bool)
    mask[row, kind] = False
    compute = models.alpha_c + 32 * models.beta_c
    hope = prior(
        compute_s=compute if slots else np.ones(models.shape), local_batch=np.full(models.shape, 32.0)
    )
    own = models if slots else hope
    if slots <= 1:
        own = replace(own, alpha_r=hope.alpha_r, beta_r=hope.beta_r, gamma=hope.gamma)
    own = replace(own, alpha_n=1.1 * own.alpha_r, beta_n=1.1 * own.beta_r, beta_p=hope.beta_p)
    own = replace(
        own, slots_tried=np.full(models.shape, float(slots)), nodes_tried=np.full(models.shape, float(nodes))
    )
    return models.where(mask, own)


def steps(models: ThroughputModel, row: int, kind: int) -> FloatArray:
    step, _ = step_time(
        models[row, kind : kind + 1],
        slots=np.array([[1, 2, 4, 4, 8, 16, 64]]),
        nodes=np.array([[1, 1, 1, 2, 2, 4, 8]]),
        local_batch=np.full((1, 7), 32.0),
    )
    result: FloatArray = step[0]
    return result


def unchanged(one: ThroughputModel, other: ThroughputModel) -> bool:
    return all(np.array_equal(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))


def test_one_job_alone_is_taken_over_as_sia_does() -> None:
    truth = cluster(1, compute=[1, 3], links=[1, 3])
    found = across_kinds(tried(truth, 0, 1, slots=1, nodes=1))
    assert steps(found, 0, 1)[ELSE] == pytest.approx(steps(truth, 0, 1)[ELSE], rel=1e-3)


def test_other_jobs_show_the_links_of_a_kind() -> None:
    """Compute is three times slower and links are ten times slower, which Sia would miss."""
    truth = cluster(12, compute=[1, 3, 0.5], links=[1, 10, 1])
    known = tried(truth, 4, 1, slots=1, nodes=1)
    error = np.abs(steps(across_kinds(known), 4, 1) / steps(truth, 4, 1) - 1)
    alone = np.abs(steps(across_kinds(known[4:5]), 0, 1) / steps(truth, 4, 1) - 1)
    assert error.max() < 0.15
    assert alone.max() > 0.3


def test_other_jobs_show_what_several_nodes_cost() -> None:
    """There is only one kind."""
    truth = cluster(12, compute=[1], links=[1])
    known = tried(truth, 4, 0, slots=4, nodes=1)
    error = np.abs(steps(across_kinds(known), 4, 0) / steps(truth, 4, 0) - 1)
    hope = np.abs(steps(known, 4, 0) / steps(truth, 4, 0) - 1)
    assert error[:3].max() < 1e-6, "within a node its own"
    assert error.mean() < 0.5 * hope.mean()


def test_what_was_tried_stays() -> None:
    truth = cluster(6, compute=[1, 2, 4], links=[1, 5, 2])
    assert unchanged(across_kinds(truth), truth)
    known = tried(truth, 1, 2, slots=1, nodes=1)
    found = across_kinds(known)
    assert steps(found, 1, 2)[0] == pytest.approx(steps(known, 1, 2)[0]), "one slot"
    assert unchanged(found[:, :2], known[:, :2])
    assert found.slots_tried[1, 2] == 1
    several = across_kinds(tried(truth, 1, 2, slots=4, nodes=1))
    assert steps(several, 1, 2)[:3] == pytest.approx(steps(truth, 1, 2)[:3]), "one node"


def test_a_kind_without_any_profile_borrows_and_is_unsure() -> None:
    truth = cluster(3, compute=[1, 4], links=[1, 4])
    known = tried(truth, 0, 1, slots=0, nodes=0)
    found = across_kinds(known)
    assert steps(found, 0, 1) == pytest.approx(steps(truth, 0, 0), rel=1e-4)
    slower = borrow(truth[:1, 0], 0.25)
    assert steps(slower[:, None], 0, 0) == pytest.approx(steps(truth, 0, 1), rel=1e-4)
    place = {"slots": np.ones(1), "nodes": np.ones(1), "local_batch": np.full(1, 32.0)}
    assert log_spread(found[0, 1:2], **place) > 5 * log_spread(found[0, :1], **place)
    assert found.slots_tried[0, 1] == 0


@pytest.mark.parametrize("speed", [math.nan, 0.0, -2.0, math.inf])
def test_a_speed_that_cannot_be_is_none(speed: float) -> None:
    known = cluster(2, compute=[1], links=[1])[:, 0]
    assert unchanged(borrow(known, speed), borrow(known))


def test_the_best_known_kind_is_the_source() -> None:
    """Several nodes precede one node, in any order of the kinds."""
    truth = cluster(1, compute=[1, 1, 1], links=[1, 1, 1])
    known = tried(tried(truth, 0, 0, slots=4, nodes=1), 0, 2, slots=1, nodes=1)
    assert steps(across_kinds(known), 0, 2)[ELSE] == pytest.approx(steps(truth, 0, 2)[ELSE], rel=1e-3)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (3, 1), (2, 3)])
def test_jobs_that_ran_nowhere_keep_the_prior(shape: tuple[int, int]) -> None:
    none = prior(compute_s=np.ones(shape), local_batch=np.full(shape, 32.0))
    assert unchanged(across_kinds(none), none)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4))
def test_whatever_was_tried_there_is_a_model(seed: int, jobs: int, kinds: int) -> None:
    random = np.random.default_rng(seed)
    models = cluster(jobs, compute=[1.0] * kinds, links=[1.0] * kinds, seed=seed)
    extreme = np.exp(random.normal(0, 8, models.shape))
    nodes = random.integers(0, 3, models.shape).astype(float)
    models = replace(
        models,
        alpha_c=extreme,
        alpha_n=np.exp(random.normal(0, 8, models.shape)),
        nodes_tried=nodes,
        slots_tried=nodes * random.integers(1, 5, models.shape),
    )
    found = across_kinds(models)
    for each in fields(found):
        assert np.isfinite(getattr(found, each.name)).all(), each.name


def test_additive_finds_rows_and_columns() -> None:
    random = np.random.default_rng(0)
    truth = random.normal(0, 1, (30, 1)) + random.normal(0, 1, (1, 4))
    weights = (random.random((30, 4)) < 0.7).astype(float)
    weights[0] = [1, 0, 0, 0]
    found = additive(np.where(weights > 0, truth, 99.0), weights, 1e-6)
    assert found[0] == pytest.approx(truth[0], abs=0.01)
    assert additive(np.where(weights > 0, truth, 99.0), weights, 1e6)[0] == pytest.approx(
        truth[0, 0], abs=0.01
    )
