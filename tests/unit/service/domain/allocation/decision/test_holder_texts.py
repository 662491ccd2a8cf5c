"""Texts on what the holders of slots keep beyond their minimums, beside the states that they describe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.decision.holder_texts import Holders, holders_in, surplus_text, unbounded_text
from service.domain.cluster.snapshot import Snapshot
from service.domain.jobs.job import Job
from tests.unit.service.builders import node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, decisions, elastic_job, on, speeds

WAITS = elastic_job("w", 1, 1)


def full(holder: Job, *others: Job) -> Snapshot:
    """A node of four slots, of which `holder` holds three and the job `o` one."""
    other = elastic_job("o", 1, 1, state=RUNNING)
    held = {holder.id: on("n", 0, 1, 2), "o": on("n", 3)}
    return snapshot_of([node_of("n", 4)], [holder, other, WAITS, *others], held)


def holders_of(snapshot: Snapshot) -> Holders:
    return holders_in(frozenset(snapshot.pools.values()), snapshot)


def wait_text(snapshot: Snapshot) -> str:
    return decisions(snapshot)["w"].message


@pytest.mark.parametrize(
    "fields", [{"elastic": {"resize": "never"}}, {"pinned_size": 3}, {"state": JobState.STARTING}]
)
def test_a_holder_of_more_than_its_minimum_is_named(fields: dict[str, Any]) -> None:
    text = wait_text(full(elastic_job("h", 1, 4, **{"state": RUNNING, **fields})))
    assert "h holds more than its minimum" in text
    assert "no running job holds more" not in text
    assert ("changing now" in text) == ("state" in fields)
    assert ("fixed in size" in text) == ("state" not in fields)


def test_holders_at_their_minimums_hold_no_more() -> None:
    fixed = elastic_job("h", 3, 4, state=RUNNING, elastic={"resize": "never"})
    assert "no running job holds more than its minimum" in wait_text(full(fixed))


def test_sizes_are_fixed_only_where_all_are() -> None:
    starting = full(elastic_job("h", 1, 4, state=JobState.STARTING))
    text = unbounded_text(holders_of(starting), "default")
    assert "sizes are fixed" not in text
    assert "once h has started, changed or ended" in text
    never = {"resize": "never"}
    snapshot = full(elastic_job("h", 1, 4, state=RUNNING, elastic=never))
    assert "sizes are fixed" not in unbounded_text(holders_of(snapshot), "default"), "that of o is not"
    fixed = replace(snapshot, jobs={**snapshot.jobs, "o": replace(snapshot.jobs["o"], pinned_size=1)})
    assert "sizes are fixed" in unbounded_text(holders_of(fixed), "default")


@pytest.mark.parametrize(("least", "left", "few"), [(3, 0, True), (3, 1, False), (2, 0, False)])
def test_free_slots_count_with_the_surplus(least: int, left: int, *, few: bool) -> None:
    """Two slots beyond the minimum of h, and those that are free."""
    holders = holders_of(full(elastic_job("h", 1, 4, state=RUNNING)))
    text = surplus_text(holders, least, left, "default")
    assert "2 slots beyond their minimums" in text
    assert ("too few" in text) is few


def test_speeds_of_a_job_of_steps_are_in_steps() -> None:
    job = elastic_job(state=RUNNING, high=2, progress=JobProgress(unit="steps"))
    snapshot = snapshot_of([node_of("n", 2)], [job], {"j": on("n", 0)}, {"j": speeds((1, 100.0))})
    assert "steps/s" in decisions(snapshot)["j"].message
