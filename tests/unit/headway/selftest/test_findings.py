from __future__ import annotations

from dataclasses import replace

import pytest

from headway.selftest.findings import LARGEST_LOSS_ERROR, failure, findings_of
from headway.selftest.trial import Change, TrialResult

HELD = TrialResult(
    grows=[Change(0.9, 0, 400_000_000), Change(0.1, 0, 400_000_000)],
    shrink=Change(0.03, 0, 0),
    loss=Change(0.2, 1, 0),
    loss_error=LARGEST_LOSS_ERROR,
    steps=50,
    stopped_at=1600,
    resumed_at=1600,
)


def broken(result: TrialResult) -> list[str]:
    return [
        one.name.removeprefix("replicated: ") for one in findings_of("replicated", result) if not one.held
    ]


def test_every_promise_is_held_at_its_bound():
    assert broken(HELD) == []


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (replace(HELD, grows=[Change(0.9, 0, 0), Change(0.1, 1, 0)]), ["grow"]),
        (replace(HELD, shrink=Change(0.1, 1, 0)), ["shrink"]),
        (replace(HELD, loss=Change(0.1, 2, 0)), ["lost rank"]),
        (replace(HELD, resumed_at=0), ["checkpoint"]),
        (replace(HELD, loss_error=2 * LARGEST_LOSS_ERROR), ["losses"]),
        (replace(HELD, loss_error=float("inf")), ["losses"]),
        (replace(HELD, loss_error=float("nan")), ["losses"]),
    ],
)
def test_each_broken_promise_is_a_finding_with_a_remedy(result: TrialResult, names: list[str]):
    assert broken(result) == names
    assert all(one.why and one.hint for one in findings_of("replicated", result) if not one.held)


def test_a_sharded_model_has_no_finding_about_a_lost_rank():
    found = findings_of("sharded", replace(HELD, loss=None))
    assert [one.name for one in found] == [
        f"sharded: {one}" for one in ("grow", "shrink", "checkpoint", "losses")
    ]


def test_a_trial_that_ended_early_is_a_finding():
    assert not failure("sharded", "rank 1.0 ended with 1").held
