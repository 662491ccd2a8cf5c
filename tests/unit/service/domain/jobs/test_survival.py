"""When a loss is survived in place, when it counts, and how long newcomers are left alone after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.spec import Retry
from service.domain.jobs.failures import (
    RankExit,
    counts_as_failure,
    decide_survival,
    growth_backoff_s,
    how_it_ended,
    is_loss,
)


def ended(exit_code: int | None = None, signal: int | None = None, *, completed: bool = False) -> RankExit:
    return RankExit(rank=0, exit_code=exit_code, signal=signal, stopped_by_agent=False, completed=completed)


@pytest.mark.parametrize(
    ("exit_", "loss"),
    [
        (ended(signal=9), True),
        (ended(), True),
        (ended(0), False),
        (ended(1), False),
        (ended(75), False),
        (ended(78), False),
        (ended(143), False),
        (ended(signal=6, completed=True), False),
    ],
)
def test_what_is_a_loss(exit_: RankExit, *, loss: bool) -> None:
    assert is_loss(exit_) is loss


def test_how_a_rank_ended_reads_as_the_rest_of_a_sentence() -> None:
    assert how_it_ended(ended(signal=9)) == "was killed by SIGKILL"
    assert how_it_ended(ended()) == "ended; its exit status is unknown"


@given(st.booleans(), st.integers(0, 5), st.booleans(), st.integers(0, 5), st.integers(0, 5))
def test_survival_needs_a_live_job_a_survivor_and_a_retry_for_what_counts(
    live: bool, survivors: int, counted: bool, failures: int, budget: int
) -> None:
    survival = decide_survival(
        live=live, survivors=survivors, counted=counted, failures=failures, retry=Retry(infrastructure=budget)
    )
    assert survival.in_place is (live and survivors > 0 and (not counted or failures < budget))
    assert bool(survival.why_not) is not survival.in_place


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 3))
def test_only_losses_without_progress_run_out(gains: list[int], budget: int) -> None:
    """Losses with `gains` samples between them: as many without any as the budget has are survived."""
    samples, at_loss, failures = 100, None, 0
    for number, gain in enumerate(gains):
        samples += gain
        counted = counts_as_failure(samples, at_loss)
        assert counted is (number > 0 and gain == 0)
        survival = decide_survival(
            live=True, survivors=1, counted=counted, failures=failures, retry=Retry(infrastructure=budget)
        )
        failures += counted
        assert survival.in_place is (not counted or failures <= budget)
        at_loss = samples


def test_newcomers_are_left_alone_ever_longer() -> None:
    assert [growth_backoff_s(failures) for failures in (1, 2, 3, 7, 8, 10_000)] == [10, 20, 40, 600, 600, 600]
