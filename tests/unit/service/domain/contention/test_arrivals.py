"""Foresight of jobs that need slots: growth by restart waits where the size would probably not last."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.views.jobs import JobState
from service.domain.allocation.configurations.scope import scope_of
from service.domain.allocation.inputs.estimates import estimates_of
from service.domain.allocation.inputs.notes import Note, notes_of
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.arrivals import LASTS, quiet_probability
from tests.unit.service.builders import NOW, job_of, node_of, spec_of
from tests.unit.service.domain.allocation.scopes import running_alone, speeds

LINEAR = speeds((1, 100.0), (2, 200.0), (4, 400.0), (8, 800.0))


def alone(*arrived_s: float, slots: int = 8, **fields: Any) -> Snapshot:
    """A job on four slots that came long ago; other jobs came and ended `arrived_s` seconds ago."""
    since = NOW - timedelta(days=9)
    snapshot = running_alone(
        4, (node_of("n", slots=slots),), LINEAR, **{"age_s": 5000.0, "submitted_at": since} | fields
    )
    return replace(snapshot, arrivals=tuple(NOW - timedelta(seconds=one) for one in arrived_s))


def brief(snapshot: Snapshot) -> list[int]:
    scope = scope_of(snapshot)
    codes = notes_of(scope, estimates_of(scope)).codes[0]
    return scope.columns.configurations.slots[codes == Note.MAY_NOT_LAST].tolist()


@pytest.mark.parametrize(
    ("intervals_s", "quiet_s", "expected"),
    [
        ((), 0.0, 0.0),
        ((), 60.0, 0.5),
        ((), 180.0, 0.75),
        ((5.0, 5.0), 60.0, 0.5),  # shorter ones than the present quiet say nothing
        ((100.0,), 60.0, 0.25),
        ((900.0, 900.0, 900.0), 60.0, 0.875),
    ],
)
def test_the_probability_of_quiet_follows_the_intervals_that_lasted_as_long(
    intervals_s: tuple[float, ...], quiet_s: float, expected: float
) -> None:
    assert quiet_probability(intervals_s, quiet_s, 60.0) == pytest.approx(expected)


def test_the_probability_of_quiet_without_a_stay_is_certain() -> None:
    assert quiet_probability((), 10.0, 0.0) == 1.0 >= LASTS


def test_a_restarted_job_does_not_grow_soon_after_a_submit() -> None:
    assert brief(alone(30.0, 35.0, 40.0)) == [5, 6, 7, 8]


def test_a_restarted_job_grows_once_it_was_quiet_for_twice_its_stay() -> None:
    since = NOW - timedelta(seconds=145)
    # Smaller sizes leave room for two slots.
    assert brief(alone(120.0, submitted_at=since)) == [7, 8]
    assert brief(alone(140.0, submitted_at=since)) == []


def test_a_restarted_job_grows_soon_where_jobs_come_hours_apart() -> None:
    assert brief(alone(*(20.0 + 9000.0 * number for number in range(6)))) == []


def test_a_job_that_grows_in_place_does_not_wait_for_quiet() -> None:
    assert brief(alone(30.0, live=True)) == []


def test_the_size_that_a_user_asks_for_does_not_wait_for_quiet() -> None:
    assert 8 not in brief(alone(30.0, pinned_size=8))


def test_a_restarted_job_grows_only_where_all_expected_jobs_find_room_beside_it() -> None:
    assert brief(alone(30.0, slots=64)) == []
    often = [30.0 + 2.0 * number for number in range(20)]
    assert brief(alone(*often, slots=64)) == []
    assert brief(alone(*often, slots=32)) == [5, 6, 7, 8]


@pytest.mark.parametrize(("state", "waits"), [(JobState.PENDING, True), (JobState.PAUSED, False)])
def test_a_job_that_waits_again_counts_like_a_new_one(state: JobState, waits: bool) -> None:
    snapshot = alone(9000.0, 9005.0)
    spec = spec_of("other", elastic={"min": 2, "max": 2})
    since = NOW - timedelta(days=8)
    other = replace(job_of("other", spec=spec), state=state, submitted_at=since, state_since=NOW)
    snapshot = replace(snapshot, jobs={**snapshot.jobs, "other": other})
    assert bool(brief(snapshot)) is waits
