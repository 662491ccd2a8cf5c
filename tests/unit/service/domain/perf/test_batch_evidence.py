"""The effect of the batch as losses of jobs show it: worked out by hand, and recovered from made-up curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.jobs import JobProgress, JobState
from service.domain.cluster.snapshot import LossHistory, LossPoint
from service.domain.jobs.job import Job
from service.domain.perf.batch_evidence import measured_effects
from service.domain.perf.efficiency import efficiency
from tests.unit.service.builders import job_of, spec_of, wild_floats

REFERENCE, PHI = 64, 100.0


def adaptive(name: str = "gpt-1", rule: str = "auto", reported: str | None = None, **fields: Any) -> Job:
    batch = {"policy": "adaptive", "global": REFERENCE, "max_global": 4096, "lr_rule": rule}
    progress = JobProgress(lr_rule=reported)
    return job_of(name, JobState.RUNNING, spec=spec_of(name, batch=batch), progress=progress, **fields)


def worth(batch: int, effect: float, phi: float = PHI) -> float:
    """Reference samples of a sample."""
    return float(efficiency(batch, REFERENCE, phi, effect))


def falling(progress: float) -> float:
    """A loss by the reference samples done, as first-order methods converge."""
    return 1.0 / (1.0 + progress / 5000.0) + 0.1


def history(
    batches: Sequence[int],
    effect: float,
    *,
    phi: float = PHI,
    total: float = 20_000.0,
    points: int = 16,
    noise: Callable[[], float] = lambda: 1.0,
    **fields: Any,
) -> LossHistory:
    """A job that does `total` reference samples, with these batches for equal shares of its samples."""
    shares = [worth(one, effect, phi) for one in batches]
    samples = total / float(np.mean(shares))
    found, progress, before = [], 0.0, 0.0
    for at in np.linspace(samples / points, samples, points).tolist():
        index = min(int(at / samples * len(batches) - 1e-9), len(batches) - 1)
        progress += (at - before) * shares[index]
        before = at
        found.append(LossPoint(at, falling(progress) * noise(), batches[index]))
    return LossHistory(
        **{"job_id": "j", "reference_batch": REFERENCE, "lr_rule": None, "points": tuple(found), **fields}
    )


def effect_of(*histories: LossHistory, job: Job | None = None, phi: float = PHI) -> float | None:
    found = measured_effects(
        [job or adaptive()], {"default/gpt": histories}, np.array([phi]), np.array([float(REFERENCE)])
    )
    return None if found is None else float(found[0])


@pytest.mark.parametrize("effect", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("batches", [(512,), (256, 512), (512, 256)], ids=str)
def test_the_effect_that_made_two_curves_is_found(effect: float, batches: tuple[int, ...]) -> None:
    """The prediction by noise pulls a little to 1, as it does for each observation."""
    found = effect_of(history((REFERENCE,), effect), history(batches, effect))
    assert found is not None
    assert found == pytest.approx(effect, abs=0.15 * (1 + abs(effect - 1)))


def test_samples_to_a_loss_by_hand() -> None:
    """Both lose 1 a step of the table; at 128 samples that takes 3 times as many, where noise predicts 228 / 164."""
    slow = tuple(LossPoint(3000.0 * k, 10.0 - k, 128) for k in range(1, 9))
    fast = tuple(LossPoint(1000.0 * k, 10.0 - k, 64) for k in range(1, 9))
    histories = [LossHistory("a", 64, None, slow), LossHistory("b", 64, None, fast)]
    x, y = math.log(164 / 228), math.log(1 / 3)
    assert effect_of(*histories) == pytest.approx((x * y + 0.2) / (x * x + 0.2))


def test_a_job_without_a_rule_for_its_rate_takes_one_step_for_one() -> None:
    """A noisy quadratic at a constant rate: 7.8 times the samples at 128 instead of 16, where 8 is expected."""
    wide = tuple(LossPoint(7800.0 * k, 1.0 / k, 512) for k in range(1, 12))
    narrow = tuple(LossPoint(1000.0 * k, 1.0 / k, 64) for k in range(1, 12))
    histories = [LossHistory("a", 64, "none", wide), LossHistory("b", 64, None, narrow)]
    found = effect_of(*histories, job=adaptive(reported="none"), phi=math.nan)
    assert found == pytest.approx(1.0, abs=0.02)
    assert float(efficiency(512, 64, math.nan, found)) == pytest.approx(1 / 7.8, rel=0.03)


@pytest.mark.parametrize(
    "other",
    [
        history((REFERENCE,), 2.0),
        history((512,), 2.0, reference_batch=32),
        history((512,), 2.0, reference_batch=None),
        history((512,), 2.0, lr_rule="none"),
        history((512,), 2.0, points=2),
        LossHistory("j", 64, None, tuple(LossPoint(1000.0 * k, 2.0, 512) for k in range(1, 17))),
        LossHistory("j", 64, None, tuple(LossPoint(1000.0 * k, 1.0 + k, 512) for k in range(1, 17))),
        LossHistory("j", 64, None, tuple(LossPoint(1000.0 * k, 1e-6 / k, 512) for k in range(1, 17))),
    ],
    ids=[
        "same batch",
        "other job file",
        "no batch",
        "other rule",
        "two points",
        "level",
        "rising",
        "other losses",
    ],
)
def test_without_a_comparison_nothing_is_known(other: LossHistory) -> None:
    assert effect_of(history((REFERENCE,), 2.0), other) is None


def test_a_job_at_its_own_batch_is_evidence_for_every_rule() -> None:
    """Its learning rate is that of the script."""
    base = history((REFERENCE,), 1.0, lr_rule="sqrt")
    assert effect_of(base, history((512,), 1.0, lr_rule="none"), job=adaptive(reported="none")) is not None
    wide = history((256,), 1.0, lr_rule="sqrt")
    assert effect_of(wide, history((512,), 1.0, lr_rule="none"), job=adaptive(reported="none")) is None


def test_only_adaptive_jobs_of_the_class_have_an_effect() -> None:
    jobs = [
        adaptive(),
        adaptive("gpt-2"),
        adaptive("other-1"),
        replace(adaptive("gpt-3"), spec=spec_of("gpt-3", batch={"global": REFERENCE})),
    ]
    histories = {"default/gpt": (history((REFERENCE,), 2.0), history((512,), 2.0))}
    found = measured_effects(jobs, histories, np.full(4, PHI), np.full(4, float(REFERENCE)))
    assert found is not None
    assert found[0] == found[1] > 1.5
    assert found[2:].tolist() == [1.0, 1.0]
    assert measured_effects(jobs, {}, np.full(4, PHI), np.full(4, float(REFERENCE))) is None


def test_what_was_trained_before_a_return_to_a_checkpoint_does_not_count() -> None:
    base, wide = history((REFERENCE,), 1.0), history((512,), 1.0)
    lost = tuple(LossPoint(point.samples * 1.2, 3.0, 64) for point in wide.points[:5])
    again = replace(wide, points=(*lost, *wide.points))
    assert effect_of(base, again) == pytest.approx(effect_of(base, wide) or 0.0)


def test_disagreeing_intervals_have_little_weight() -> None:
    random = np.random.default_rng(7)

    def noise() -> float:
        return float(np.exp(0.5 * random.standard_normal()))

    sure = effect_of(history((REFERENCE,), 3.0), history((512,), 3.0))
    unsure = effect_of(history((REFERENCE,), 3.0, noise=noise), history((512,), 3.0, noise=noise))
    assert sure is not None
    assert unsure is None or abs(unsure - 1.0) < abs(sure - 1.0)


@given(st.floats(0.0, 2.5), st.sampled_from([128, 256, 512, 1024]), st.floats(10.0, 1e4))
def test_noisy_losses_move_the_prediction_towards_the_truth(effect: float, batch: int, phi: float) -> None:
    """The efficiency that was measured is at least as near to the true one as the predicted efficiency is."""
    random = np.random.default_rng(3)

    def noise() -> float:
        return float(np.exp(0.02 * random.standard_normal()))

    histories = [
        history((one,), effect, phi=phi, noise=noise) for one in (REFERENCE, batch, REFERENCE, batch)
    ]
    found = effect_of(*histories, phi=phi)
    assert found is not None
    true, predicted = (math.log(worth(batch, one, phi)) for one in (effect, 1.0))
    measured = math.log(worth(batch, found, phi))
    assert abs(measured - true) <= abs(predicted - true) + 0.1


wild_points = st.builds(LossPoint, samples=wild_floats, loss=wild_floats, global_batch=st.integers(-1, 2**40))
wild_histories = st.builds(
    LossHistory,
    job_id=st.just("j"),
    reference_batch=st.sampled_from([None, 0, REFERENCE]),
    lr_rule=st.sampled_from([None, "none", "sqrt", "odd"]),
    points=st.lists(wild_points, max_size=8).map(tuple),
)


@given(st.lists(wild_histories, max_size=4), wild_floats, wild_floats)
def test_whatever_scripts_report_the_exponent_is_bounded(
    histories: list[LossHistory], phi: float, reference: float
) -> None:
    found = measured_effects(
        [adaptive()], {"default/gpt": tuple(histories)}, np.array([phi]), np.array([reference])
    )
    assert found is None or -2.0 <= found[0] <= 4.0
