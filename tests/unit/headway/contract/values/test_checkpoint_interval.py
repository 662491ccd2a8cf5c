"""The checkpoint interval: the optimum by Daly, its bounds, and the load on storage."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.checkpoint_interval import (
    LONGEST_S,
    SHORTEST_S,
    best_interval_s,
    checkpoint_interval_s,
)

costs = st.floats(0, 1e4)
rates = st.floats(0, 1e4)
means = st.floats(1, 1e7)


def overhead(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """Time per second of training that goes into saving and into what a loss costs, after Daly (2006), with restarts
    that cost nothing and losses that come at random."""
    return mtbf_s * math.expm1((interval_s + cost_s) / mtbf_s) / interval_s


@given(cost_s=st.floats(0.01, 100), mtbf_s=st.floats(1e4, 1e6), factor=st.sampled_from([0.5, 0.8, 1.25, 2.0]))
def test_no_other_interval_is_better(cost_s: float, mtbf_s: float, factor: float) -> None:
    best = best_interval_s(cost_s, mtbf_s)
    assert overhead(best, cost_s, mtbf_s) <= overhead(best * factor, cost_s, mtbf_s) * (1 + 1e-9)


@given(cost_s=costs, mtbf_s=means)
def test_an_interval_is_at_most_the_time_between_losses(cost_s: float, mtbf_s: float) -> None:
    assert 0 <= best_interval_s(cost_s, mtbf_s) <= mtbf_s


@pytest.mark.parametrize(
    ("losses_per_h", "cost_s", "total_s", "expected"),
    [
        pytest.param(1.0, 8.0, 0.0, math.sqrt(2 * 8 * 3600) - 8, id="Daly"),
        pytest.param(0.25, 2.0, 0.0, math.sqrt(2 * 2 * 4 * 3600) - 2, id="a quarter of the losses"),
        pytest.param(0.01, 1.0, 0.0, math.sqrt(2 * 360_000) - 1, id="a loss in a hundred hours"),
        pytest.param(1.0, 0.01, 0.0, SHORTEST_S, id="cheap: not more often than twice a minute"),
        pytest.param(1.0, 0.01, 100.0, 200.0, id="storage is slow: half of the time"),
        pytest.param(1.0, 8.0, 2000.0, LONGEST_S, id="not even then less often than every half an hour"),
        pytest.param(1e-4, 8.0, 0.0, LONGEST_S, id="losses are rare"),
        pytest.param(0.0, 8.0, 0.0, LONGEST_S, id="no losses"),
        pytest.param(0.0, 0.0, 0.0, SHORTEST_S, id="no losses and no cost: saves are free"),
        pytest.param(0.0, 0.1, 0.0, 100.0, id="no losses and a low cost: a thousandth of the time"),
        pytest.param(0.0, 0.01, 20.0, 200.0, id="no losses and slow storage: a tenth of the time"),
        pytest.param(60.0, 40.0, 0.0, 60.0, id="a save costs more than half of the time between losses"),
        pytest.param(60.0, 30.0, 0.0, 60.0, id="a save costs just half of it"),
        pytest.param(1.0, -8.0, 0.0, SHORTEST_S, id="a negative cost is none"),
    ],
)
def test_by_hand(losses_per_h: float, cost_s: float, total_s: float, expected: float) -> None:
    found = checkpoint_interval_s(losses_per_h=losses_per_h, cost_s=cost_s, total_s=total_s)
    assert found == pytest.approx(expected)


@given(losses_per_h=rates, more=st.floats(1, 100), cost_s=st.floats(0.01, 10), total_s=costs)
def test_more_losses_never_make_it_longer(
    losses_per_h: float, more: float, cost_s: float, total_s: float
) -> None:
    calm, rough = (
        checkpoint_interval_s(losses_per_h=one, cost_s=cost_s, total_s=total_s)
        for one in (losses_per_h, losses_per_h * more)
    )
    assert rough >= SHORTEST_S
    # Above half of the time between losses a save does not pay at any interval, and the bound takes over.
    assert rough <= calm or cost_s * losses_per_h * more > 3600 / 4
    assert calm <= LONGEST_S
