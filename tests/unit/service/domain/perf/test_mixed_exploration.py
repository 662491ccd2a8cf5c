"""Tests of the mixes of two kinds that may be tried, and of their scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.domain.perf.exploration import Exploration, Explored, credible, explore, optimistic_goodput
from tests.unit.service.domain.perf.test_exploration import columns_of

E = Exploration

# Mixed kinds

PARTS = np.array([(1, 0), (2, 0), (4, 0), (0, 1), (0, 4), (1, 1), (2, 2), (4, 4), (4, 1)])
MIXED = replace(
    columns_of(*((int(b > 0), int(a + b)) for a, b in PARTS)),
    parts=PARTS,
)
"""One, two and four slots of `a`, one and four of `b`, and 1+1, 2+2, 4+4 and 4+1 of both."""


@pytest.mark.parametrize(
    ("tried", "codes"),
    [
        pytest.param((), [E.TOO_FAR] * 4, id="nothing is known"),
        pytest.param((0,), [E.NEAR, E.TOO_FAR, E.TOO_FAR, E.TOO_FAR], id="twice one slot of one kind"),
        pytest.param((1,), [E.NEAR, E.NEAR, E.TOO_FAR, E.TOO_FAR], id="twice two slots"),
        pytest.param((4,), [E.NEAR, E.NEAR, E.NEAR, E.NEAR], id="the other kind is enough"),
        pytest.param((0, 6), [E.NEAR, E.TRIED, E.NEAR, E.NEAR], id="a tried mix extends the reach"),
    ],
)
def test_a_mix_opens_once_a_kind_of_it_is_known(tried: tuple[int, ...], codes: list[Exploration]) -> None:
    found = explore_mixed(tried)
    assert found.code[0, 5:].tolist() == codes
    assert (found.mask[0, 5:] == [code != E.TOO_FAR for code in codes]).all()


def explore_mixed(tried: tuple[int, ...], **given: Any) -> Explored:
    slots = MIXED.slots[None].astype(float)
    return explore(
        MIXED,
        **{
            "allowed": np.ones((1, 9), bool),
            "tried": np.isin(np.arange(9), tried)[None],
            "alike": np.zeros((1, 9), bool),
            "current": np.array([-1]),
            "goodput": slots,
            "high": 2.0 * slots,
            **given,
        },
    )


def test_a_mix_must_beat_the_known_sizes_within_it_only() -> None:
    """Four slots of `a` reach 40. The mix 4+1 contains them and must reach 42; 2+2 does not."""
    goodput = np.array([[10.0, 20, 40, 1, 4, 11, 22, 44, 41]])
    found = explore_mixed((2,), goodput=goodput, high=goodput.copy())
    assert found.code[0, 5:].tolist() == [E.NEAR, E.NEAR, E.NEAR, E.NOT_WORTH_IT]


def test_a_job_that_fits_on_no_kind_alone_starts_with_its_smallest_mix() -> None:
    allowed = np.zeros((1, 9), bool)
    allowed[0, 6:] = True
    found = explore_mixed((), allowed=allowed)
    assert found.code[0].tolist() == [E.NOT_ALLOWED] * 6 + [E.SMALLEST, E.TOO_FAR, E.TOO_FAR]


def test_a_mix_is_scored_at_the_median_and_bounded_by_no_other_size() -> None:
    goodput, known = MIXED.slots[None].astype(float), np.isin(np.arange(9), (0, 6))[None]
    hope = optimistic_goodput(MIXED, goodput, 3.0 * goodput, known)
    assert hope[0].tolist() == [1, 6, 12, 3, 12, 2, 4, 8, 5]
    high = credible(MIXED, goodput=goodput, low=goodput, high=3.0 * goodput, known=known)
    assert high[0, 5:].tolist() == [6, 12, 24, 15]
