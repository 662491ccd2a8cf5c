"""Tests with synthetic kinds of known truth: links and compute differ, each by its own factor."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.perf.throughput import GUESS_SPREAD, KNOTS, ThroughputModel, log_spread, prior, step_time
from service.domain.perf.transfer import across_kinds, additive, borrow, transfer
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


def pair(**own: float) -> tuple[ThroughputModel, ThroughputModel]:
    """The models of one job on a known kind and on a new one, whose times are all 1 s and 7 s."""
    names = ("alpha_c", "beta_c", *SYNC)
    one = prior(compute_s=np.ones(1), local_batch=np.full(1, 32.0))
    known = replace(one, **dict.fromkeys(names, np.ones(1)), gamma=np.array([3.0]))
    new = replace(one, **dict.fromkeys(names, np.full(1, 7.0)), gamma=np.array([5.0]))
    return known, replace(new, **{name: np.array([value]) for name, value in own.items()})


@pytest.mark.parametrize(
    ("slots", "nodes", "expected"),
    [
        # Within a node twice, across nodes three times, and on two nodes five times the known kind's times.
        (1.0, 1.0, {"alpha_r": 2.0, "beta_r": 2.0, "alpha_n": 3.0, "beta_n": 3.0, "beta_p": 5.0, "gamma": 3.0}),
        (4.0, 1.0, {"alpha_r": 7.0, "beta_r": 7.0, "alpha_n": 3.0, "beta_n": 3.0, "beta_p": 5.0, "gamma": 5.0}),
        (4.0, 2.0, {"alpha_r": 7.0, "beta_r": 7.0, "alpha_n": 7.0, "beta_n": 7.0, "beta_p": 7.0, "gamma": 5.0}),
    ],
)  # fmt: skip
def test_untried_parts_are_scaled_from_the_known_kind(
    slots: float, nodes: float, expected: dict[str, float]
) -> None:
    known, own = pair(slots_tried=slots, nodes_tried=nodes)
    found = transfer(known, own, np.log(np.array([[2.0], [3.0], [5.0]])))
    assert {name: getattr(found, name).item() for name in expected} == pytest.approx(expected)
    for name in ("alpha_c", "beta_c", "spread", "slots_tried", "nodes_tried", "batch_low"):
        assert getattr(found, name).tolist() == getattr(own, name).tolist(), name


@pytest.mark.parametrize(
    ("spread", "expected"), [(0.05, GUESS_SPREAD), (GUESS_SPREAD, GUESS_SPREAD), (1.5, 1.5)]
)
def test_a_borrowed_model_is_at_least_as_unsure_as_a_guess(spread: float, expected: float) -> None:
    known = replace(cluster(1, compute=[1], links=[1])[:, 0], spread=np.array([spread]))
    found = borrow(known, 2.0)
    assert found.spread.tolist() == [expected]
    assert (found.slots_tried.tolist(), found.nodes_tried.tolist()) == ([0.0], [0.0])
    assert found.alpha_c == pytest.approx(known.alpha_c / 2)
    assert found.gamma.tolist() == known.gamma.tolist()


def test_relative_speeds_of_several_jobs_are_their_own() -> None:
    known = cluster(3, compute=[1], links=[1])[:, 0]
    found = borrow(known, np.array([2.0, math.nan, 0.5]))
    assert (known.alpha_c / found.alpha_c).tolist() == pytest.approx([2.0, 1.0, 0.5])


def test_compute_alone_predicts_the_synchronisation_of_one_job() -> None:
    """Sia's guess: on a kind with three times the compute, synchronisation takes three times as long, too."""
    truth = cluster(1, compute=[1, 3], links=[1, 9])
    found = across_kinds(tried(truth, 0, 1, slots=1, nodes=1))
    for name in ("alpha_r", "beta_r", "alpha_n", "beta_n"):
        ratio = getattr(found, name)[0, 1] / getattr(truth, name)[0, 0]
        assert ratio == pytest.approx(3.0, rel=1e-3), name


@pytest.mark.parametrize("others", [1, 4, 16])
def test_more_jobs_on_both_kinds_bring_the_links_closer_to_the_truth(others: int) -> None:
    """Links are ten times slower and compute is not; half of the difference is believed from half a job."""
    truth = cluster(others + 1, compute=[1, 1], links=[1, 10])
    found = across_kinds(tried(truth, 0, 1, slots=1, nodes=1))
    ratio = found.alpha_r[0, 1] / truth.alpha_r[0, 0]
    fewer = across_kinds(tried(truth[:others], 0, 1, slots=1, nodes=1)).alpha_r[0, 1] / truth.alpha_r[0, 0]
    assert 1.0 - 1e-6 <= fewer < ratio < 10.0


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4))
def test_the_order_of_kinds_does_not_matter(seed: int, kinds: int) -> None:
    random = np.random.default_rng(seed)
    compute, links = random.uniform(0.5, 4, kinds).tolist(), random.uniform(0.5, 4, kinds).tolist()
    models = cluster(4, compute=compute, links=links, seed=seed)
    models = tried(models, 1, 0, slots=1, nodes=1)
    models = tried(models, 2, kinds - 1, slots=4, nodes=1)
    order = random.permutation(kinds)
    mixed, found = across_kinds(models[:, order]), across_kinds(models)[:, order]
    for field in fields(found):
        assert getattr(mixed, field.name) == pytest.approx(getattr(found, field.name), rel=1e-6), field.name


@pytest.mark.parametrize("doubt", [0.0, 1.0])
def test_additive_on_nothing_is_zero(doubt: float) -> None:
    nothing = np.zeros((3, 2))
    assert additive(np.full((3, 2), 9.0), nothing, doubt).tolist() == nothing.tolist()
    assert additive(np.zeros((0, 2)), np.zeros((0, 2)), doubt).shape == (0, 2)


def test_additive_by_hand() -> None:
    """Rows of 1 and 5, columns of 0 and 2; the missing value is their sum."""
    values, weights = np.array([[1.0, 3.0], [5.0, 99.0]]), np.array([[1.0, 1.0], [1.0, 0.0]])
    assert additive(values, weights, 0.0) == pytest.approx(np.array([[1.0, 3.0], [5.0, 7.0]]), abs=1e-3)


def by_hand(*kinds: dict[str, float]) -> ThroughputModel:
    """One job on these kinds: compute of 1 s at 8 samples, within a node 0.1 s, across nodes 0.2 s on four slots."""
    usual = {
        "alpha_c": 0.2, "beta_c": 0.1, "alpha_r": 0.05, "beta_r": 0.05, "alpha_n": 0.1, "beta_n": 0.1, "beta_p": 0.01,
        "gamma": 2.0, "batch_low": 8.0, "batch_high": 8.0, "spread": 0.1, "slots_tried": 4.0, "nodes_tried": 1.0,
    }  # fmt: skip
    values = {name: np.array([[{**usual, **kind}[name] for kind in kinds]]) for name in usual}
    return ThroughputModel(**values, bend=np.zeros((1, len(kinds), KNOTS)))


ONE_SLOT = {"slots_tried": 1.0, "gamma": 9.0}
MUCH_SYNC = {"alpha_r": 0.5, "beta_r": 0.5, "alpha_n": 0.5, "beta_n": 0.5}


@pytest.mark.parametrize(
    ("kinds", "source"),
    [
        pytest.param([{}, MUCH_SYNC], 1, id="one node: where synchronisation shows"),
        pytest.param([MUCH_SYNC, {}], 0, id="in any order"),
        pytest.param(
            [{"nodes_tried": 2.0}, MUCH_SYNC | {"nodes_tried": 2.0}], 1, id="several nodes: where it shows"
        ),
        pytest.param([{"nodes_tried": 2.0}, MUCH_SYNC], 0, id="several nodes before one"),
        pytest.param([MUCH_SYNC | {"slots_tried": 1.0}, {}], 1, id="several slots before one"),
        pytest.param([{}, {}], 0, id="equal: the first"),
    ],
)
def test_the_source_is_the_kind_on_which_synchronisation_is_known_best(
    kinds: list[dict[str, float]], source: int
) -> None:
    """A kind on which one slot was tried takes the overlap of the source."""
    models = by_hand(*({**kind, "gamma": 2.0 + index} for index, kind in enumerate(kinds)), ONE_SLOT)
    assert across_kinds(models).gamma[0, -1] == 2.0 + source


def test_times_on_a_kind_of_one_slot_follow_from_compute() -> None:
    """Compute takes three times as long; across nodes takes 1.1 times as long as within a node."""
    slow = {**ONE_SLOT, "alpha_c": 0.6, "beta_c": 0.3, "alpha_r": 7.0, "beta_r": 7.0}
    found = across_kinds(by_hand({}, slow))
    assert found.alpha_r[0, 1] + found.beta_r[0, 1] == pytest.approx(3 * 0.1)
    assert found.alpha_n[0, 1] + found.beta_n[0, 1] == pytest.approx(3 * 0.1 * 1.1)
    assert found.beta_p[0, 1] == pytest.approx(3 * 0.1 * 1.1 * 0.01)


def test_compute_is_compared_at_the_middle_of_the_batches_that_ran() -> None:
    """At 8 samples, the middle of 4 and 16, compute takes 1 s and 8.2 s; the third kind never ran."""
    batches = {"batch_low": 4.0, "batch_high": 16.0}
    other = {**batches, **ONE_SLOT, "beta_c": 1.0}
    never = {"slots_tried": 0.0, "nodes_tried": 0.0, "batch_low": 1e5, "batch_high": 1e5}
    found = across_kinds(by_hand(batches, other, never))
    assert found.alpha_r[0, 1] == pytest.approx(8.2 * 0.05)


def both(first: ThroughputModel, second: ThroughputModel) -> ThroughputModel:
    """Two jobs on the same kinds."""
    names = [one.name for one in fields(ThroughputModel)]
    return ThroughputModel(
        **{name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in names}
    )


def test_a_kind_on_which_another_job_never_ran_says_nothing_about_compute() -> None:
    """The other job's model of the second kind is a guess of one second."""
    never = by_hand({"alpha_c": 2.0}, {"slots_tried": 0.0, "nodes_tried": 0.0})
    found = across_kinds(both(never, by_hand({}, {**ONE_SLOT, "alpha_c": 0.6, "beta_c": 0.3})))
    assert found.alpha_r[1, 1] == pytest.approx(3 * 0.05)


def test_another_job_shows_what_nodes_cost_by_its_weight() -> None:
    """Its synchronisation is not hidden, so that it counts as one job, and the default ratio of 1.1 as half a job."""
    shows = by_hand({"alpha_r": 50.0, "beta_r": 50.0, "alpha_n": 100.0, "beta_n": 100.0, "nodes_tried": 2.0})
    found = across_kinds(both(shows, by_hand({})))
    ratio = math.exp((math.log(2.0) + 0.5 * math.log(1.1)) / 1.5)
    assert found.alpha_n[1, 0] + found.beta_n[1, 0] == pytest.approx(0.1 * ratio, rel=2e-3)
