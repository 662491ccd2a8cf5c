"""Tests of Optimus: what it takes for the remaining work, and the losses that it carries from round to round."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.domain.policies.framework.loss_curve import MAX_POINTS, LossCurve, fit_loss
from service.domain.policies.framework.marginal_gain import MarginalGain
from service.domain.policies.framework.policy import RoundHistory, TrainingReports
from service.domain.policies.optimus import Optimus
from tests.unit.service.domain.policies.rounds import a_round, brute_force

CURVE = LossCurve(slope=1e-3, offset=0.5, floor=0.2)
UNKNOWN = float("nan")


def history(state: dict[str, Any], *reports: tuple[float, float, float], **fields: Any) -> RoundHistory:
    """Return the history of jobs j0, j1, ... with these (samples, loss, samples of an epoch)."""
    done, loss, epoch_samples = np.array(reports, dtype=float).reshape(len(reports), 3).T
    names = [f"j{row}" for row in range(len(reports))]
    return RoundHistory(
        **{
            "elapsed_s": 60.0,
            "usd_per_h": 0.0,
            "job_ids": names,
            "classes": names,
            "samples": np.full(len(reports), np.nan),
            "state": state,
            "reports": TrainingReports(done=done, loss=loss, epoch_samples=epoch_samples),
            **fields,
        }
    )


def jobs(count: int, **fields: Any):
    return a_round([[1.0, 1.5]] * count, [1, 2], capacity=count + 1, **fields)


def after(points: int, *, epoch_samples: float = 1000.0, policy: Optimus | None = None):
    """Return policy and state after so many losses of the curve, 500 samples apart, of the only job."""
    chosen, state = Optimus(), {}
    for step in range(1, points + 1):
        done = 500.0 * step
        given = history(json.loads(json.dumps(state)), (done, CURVE.at(done), epoch_samples))
        chosen, state = (policy or Optimus()).advance(jobs(1), given)
    return chosen, state


def test_the_remaining_work_follows_from_the_reported_losses() -> None:
    chosen, state = after(12)
    assert isinstance(chosen, MarginalGain)
    assert chosen.name == "optimus"
    largest = CURVE.at(500.0)
    relative = LossCurve(CURVE.slope * largest, CURVE.offset * largest, CURVE.floor / largest)
    assert chosen.fitted is not None
    assert chosen.fitted[0] == pytest.approx(relative.converged_at(1000.0, 0.01) - 6000.0, rel=0.05)
    assert len(state["losses"]["j0"]) == 12


def test_three_losses_are_too_few() -> None:
    chosen, state = after(3)
    assert np.isnan(chosen.fitted).all()
    assert len(state["losses"]["j0"]) == 3
    assert not np.isnan(after(4)[0].fitted).any()


def test_the_state_does_not_grow_without_bound() -> None:
    _, state = after(100)
    assert len(state["losses"]["j0"]) <= MAX_POINTS


def test_an_epoch_of_unknown_length_is_the_distance_of_the_losses() -> None:
    by_distance, _ = after(12, epoch_samples=UNKNOWN)
    as_long, _ = after(12, epoch_samples=500.0)
    assert by_distance.fitted[0] == pytest.approx(as_long.fitted[0])
    assert by_distance.fitted[0] < after(12, epoch_samples=1000.0)[0].fitted[0]


def test_the_threshold_of_convergence_is_a_parameter() -> None:
    soon, late = (after(12, policy=Optimus(convergence=one))[0] for one in (0.1, 0.001))
    assert soon.fitted[0] == 0.0, "converged"
    assert late.fitted[0] > after(12)[0].fitted[0] > 0


def test_declared_work_needs_no_losses() -> None:
    given = jobs(2, remaining=[100.0, UNKNOWN])
    reports = history({}, (500.0, 2.0, UNKNOWN), (500.0, 2.0, UNKNOWN))
    chosen, state = Optimus().advance(given, reports)
    assert list(state["losses"]) == ["j1"]
    assert chosen.fitted is not None
    assert np.isnan(chosen.fitted).all()


def test_jobs_that_ended_are_forgotten_and_others_are_told_apart() -> None:
    state = {"losses": {"gone": [[1.0, 2.0]], "j1": [[100.0, 5.0]]}}
    reports = history(state, (500.0, 2.0, UNKNOWN), (500.0, 4.0, UNKNOWN))
    _, state = Optimus().advance(jobs(2), reports)
    assert state == {"losses": {"j0": [[500.0, 2.0]], "j1": [[100.0, 5.0], [500.0, 4.0]]}}


def test_without_any_loss_nothing_is_stored() -> None:
    chosen, state = Optimus().advance(jobs(1), history({}, (500.0, UNKNOWN, UNKNOWN)))
    assert state == {}
    assert chosen.choose(jobs(1), brute_force).chosen.tolist() == [1]


def test_a_simulation_has_no_reports() -> None:
    given = history({"losses": {}}, (1.0, 1.0, 1.0), reports=None)
    assert Optimus(unsure=0.5).advance(jobs(1), given) == (MarginalGain(name="optimus", unsure=0.5), {})


def test_the_fitted_work_decides_who_grows() -> None:
    """By the guess the second job is longer; by its losses it has nearly converged."""
    given = jobs(2, served_slot_s=[5000.0, 9000.0])
    assert Optimus().choose(given, brute_force).chosen.tolist() == [0, 1]
    done = 20_000.0
    losses = [[500.0 * step, CURVE.at(500.0 * step)] for step in range(1, 16)]
    reports = history({"losses": {"j1": losses}}, (1.0, UNKNOWN, UNKNOWN), (done, CURVE.at(done), 1000.0))
    chosen, _ = Optimus().advance(given, reports)
    assert chosen.fitted is not None
    assert chosen.fitted[1] == 0.0
    assert chosen.choose(given, brute_force).chosen.tolist() == [1, 0]


def test_the_parameters_reach_the_round() -> None:
    chosen, _ = Optimus(unsure=0.25).advance(jobs(1), history({}, (1.0, 1.0, 1.0)))
    assert chosen.unsure == 0.25
    guess = {"remaining": [UNKNOWN, 1000.0], "served_slot_s": [1100.0, 0.0]}
    given = a_round([[1.0, 1.5]] * 2, [1, 2], capacity=3, **guess)
    assert Optimus().choose(given, brute_force).chosen.tolist() == [1, 0]
    assert Optimus(unsure=0.25).choose(given, brute_force).chosen.tolist() == [0, 1]


def test_the_fit_is_that_of_all_points() -> None:
    samples = np.array([500.0 * step for step in range(1, 5)])
    curve = fit_loss(samples, np.array([CURVE.at(one) for one in samples.tolist()]))
    assert curve is not None
    expected = max(0.0, curve.converged_at(1000.0, 0.01) - 2000.0)
    assert after(4)[0].fitted[0] == pytest.approx(expected)
