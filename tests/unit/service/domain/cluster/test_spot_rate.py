"""Tests of speed on machines that may be lost: the formula by hand, Young's interval, and random interruptions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.cluster.spot_rate import HOUR_S, TOGETHER, checkpoint_losses_per_h, is_pressed, spot_share

losses = st.floats(0.0, 20.0)
seconds = st.floats(0.0, 3600.0)


@pytest.mark.parametrize(
    ("losses_per_h", "checkpoint_s", "interval_s", "restart_s", "expected"),
    [
        pytest.param(0.0, 0.0, 600.0, 0.0, 1.0, id="nothing is lost"),
        pytest.param(0.0, 6.0, 600.0, 60.0, 0.99, id="checkpoints alone"),
        pytest.param(1.0, 0.0, 0.0, 36.0, 1 / 1.01, id="restarts alone"),
        pytest.param(1.0, 0.0, 600.0, 60.0, 1 / (1 + 360 / 3600), id="half an interval and a restart"),
        pytest.param(2.0, 60.0, 600.0, 300.0, 0.9 / (1 + 600 / 1800), id="all of them"),
        pytest.param(1.0, 60.0, 0.0, 36.0, 1 / 1.01, id="survives: no checkpoint is needed"),
        pytest.param(1.0, 60.0, -5.0, 36.0, 1 / 1.01, id="negative interval"),
        pytest.param(0.0, 900.0, 600.0, 0.0, 0.0, id="a checkpoint takes the whole interval"),
        pytest.param(-3.0, 0.0, 600.0, 60.0, 1.0, id="negative losses"),
        pytest.param(1.0, -9.0, 600.0, 60.0, 1 / 1.1, id="negative checkpoint"),
        pytest.param(1.0, 0.0, 600.0, -60.0, 1 / (1 + 300 / 3600), id="negative restart"),
    ],
)
def test_the_share_of_speed_by_hand(
    losses_per_h: float, checkpoint_s: float, interval_s: float, restart_s: float, expected: float
) -> None:
    share = spot_share(
        losses_per_h=losses_per_h, checkpoint_s=checkpoint_s, interval_s=interval_s, restart_s=restart_s
    )
    assert share == pytest.approx(expected)


@settings(max_examples=50)
@given(losses, seconds, seconds, seconds)
def test_the_share_is_a_fraction_and_falls_with_every_loss_and_restart(
    losses_per_h: float, checkpoint_s: float, interval_s: float, restart_s: float
) -> None:
    def share(losses_per_h: float, restart_s: float) -> float:
        return spot_share(
            losses_per_h=losses_per_h, checkpoint_s=checkpoint_s, interval_s=interval_s, restart_s=restart_s
        )

    here = share(losses_per_h, restart_s)
    assert 0.0 <= here <= 1.0
    assert share(losses_per_h + 1, restart_s) <= here
    assert share(losses_per_h, restart_s + 60) <= here


@pytest.mark.parametrize(
    ("machines", "in_place", "expected"),
    [
        pytest.param([0.2], False, 0.2, id="one machine"),
        pytest.param([0.2], True, 0.2, id="one machine: nothing survives it"),
        pytest.param([0.2, 0.3, 0.01], False, 0.51, id="every loss ends a gang"),
        pytest.param([0.2, 0.3, 0.25], True, TOGETHER * 0.2, id="only all of them at once"),
        pytest.param([0.2, 0.3, 0.001], True, TOGETHER * 0.001, id="an anchor holds a replica"),
        pytest.param([], True, 0.0, id="no machine"),
        pytest.param([0.0, 0.0], True, 0.0, id="no losses"),
    ],
)
def test_losses_that_need_a_checkpoint(machines: list[float], in_place: bool, expected: float) -> None:
    assert checkpoint_losses_per_h(machines, in_place=in_place) == pytest.approx(expected)


@settings(max_examples=30)
@given(st.floats(0.01, 2.0), st.floats(0.1, 30.0), st.floats(0.0, 120.0))
def test_no_other_interval_is_much_better(losses_per_h: float, checkpoint_s: float, restart_s: float) -> None:
    """Young's formula is the first order of the optimum."""

    def share(interval_s: float) -> float:
        return spot_share(
            losses_per_h=losses_per_h, checkpoint_s=checkpoint_s, interval_s=interval_s, restart_s=restart_s
        )

    best = math.sqrt(2 * checkpoint_s * HOUR_S / losses_per_h)
    others = max(share(factor * best) for factor in np.linspace(0.2, 5.0, 49))
    assert share(best) >= others * 0.99


def test_the_share_is_that_of_random_interruptions() -> None:
    """A run of many losses at random times, step by step."""
    draw = np.random.default_rng(1)
    checkpoint_s, interval_s, restart_s, losses_per_h = 10.0, 300.0, 60.0, 1.0
    between_s = draw.exponential(HOUR_S / losses_per_h, 20_000)
    # Between losses only whole intervals count, each without its checkpoint.
    kept_s = np.floor(between_s / interval_s) * (interval_s - checkpoint_s)
    measured = kept_s.sum() / (between_s + restart_s).sum()
    predicted = spot_share(
        losses_per_h=losses_per_h, checkpoint_s=checkpoint_s, interval_s=interval_s, restart_s=restart_s
    )
    assert measured == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize(
    ("left_s", "changes", "pressed"),
    [
        (1000.0, 0, True),
        (1001.0, 0, False),
        (1060.0, 1, True),
        (1120.0, 2, True),
        (1120.1, 2, False),
        (-1.0, 0, True),
    ],
)
def test_a_job_is_pressed_when_work_and_changes_take_all_of_the_time(
    left_s: float, changes: int, pressed: bool
) -> None:
    assert is_pressed(left_s=left_s, work_s=1000.0, change_s=60.0, changes=changes) is pressed
