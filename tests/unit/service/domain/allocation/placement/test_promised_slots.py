"""Slots that were released for a waiting job: it starts on these, although others are free too."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headway.contract.run_facts import SlotPromise
from headway.contract.views.jobs import JobProgress, JobState
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import SlotKey
from service.domain.contention.promises import with_promise
from service.domain.jobs.job import Job
from service.domain.policies.registry import policy
from tests.unit.service.builders import NOW, holding, job_of, node_of, snapshot_of, spec_of

PAIR = {"min": 2, "max": 2}
ONE = {"min": 1, "max": 1}


@pytest.mark.parametrize("slots", [[0, 1], [1, 2], [2, 3]])
def test_a_job_starts_on_its_promised_slots_and_one_that_left_them_on_others(slots: list[int]) -> None:
    """The stopped job comes first by its age, and all slots are free by now."""
    promise = SlotPromise(at=NOW - timedelta(seconds=5), slots={"n": slots}, generation=0)
    stopped = job_of("stopped", spec=spec_of("stopped", elastic=PAIR), age_s=60.0)
    heir = job_of("heir", spec=spec_of("heir", elastic=PAIR), age_s=5.0)
    heir = replace(heir, progress=JobProgress(promise=promise))
    plan = decided(stopped, heir)
    assert plan["heir"].action is plan["stopped"].action is Action.START
    assert plan["heir"].allocation == {"n": tuple(slots)}
    assert plan["stopped"].allocation == {"n": tuple(sorted({0, 1, 2, 3} - set(slots)))}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "2 cpu slots on name-of-n"),
        (("low",), "2 cpu slots on name-of-n, for which low (priority 10) was stopped"),
        (
            ("low", "mid", "gone"),
            "2 cpu slots on name-of-n, for which low and mid (priority 10 and 30) were stopped",
        ),
    ],
)
def test_a_job_that_others_were_stopped_for_says_so_when_it_starts(names: tuple[str, ...], said: str) -> None:
    promise = SlotPromise(at=NOW, slots={"n": [0, 1]}, generation=0, stopped=list(names))
    heir = job_of("heir", spec=spec_of("heir", elastic=PAIR, priority=50))
    others = [
        job_of(name, spec=spec_of(name, elastic={"min": 4, "max": 4}, priority=priority))
        for name, priority in (("low", 10), ("mid", 30))
    ]
    plan = decided(replace(heir, progress=JobProgress(promise=promise)), *others)
    assert plan["heir"].message == said.replace(")", " against 50)")


def test_a_round_notes_whom_it_stops_for_a_job_with_promised_slots() -> None:
    spec = spec_of("low", elastic={"min": 4, "max": 4}, priority=10)
    low = holding(job_of("low", JobState.RUNNING, age_s=900.0, spec=spec), [("n", slot) for slot in range(4)])
    heir = job_of("heir", spec=spec_of("heir", elastic=PAIR, priority=50))
    snapshot = snapshot_of([node_of("n", slots=4)])
    held = {SlotKey("n", slot): "low" for slot in range(4)}
    snapshot = replace(snapshot, jobs={"low": low, "heir": heir}, held=held)
    plan = {one.job_id: one for one in decide(build_round(snapshot), policy("goodput"), solve).decisions}
    assert (plan["low"].action, plan["heir"].action) == (Action.VACATE, Action.WAIT)
    assert plan["heir"].stopped_for_it == ("low",)
    promised = with_promise(heir, plan["heir"].promised, NOW, plan["heir"].stopped_for_it)
    assert promised.progress.promise is not None
    assert promised.progress.promise.stopped == ["low"]
    later = with_promise(promised, plan["heir"].promised, NOW + timedelta(seconds=5))
    assert later == promised, "the next rounds leave it as it is"


def test_a_job_that_gets_more_than_was_promised_has_its_promised_slots_among_them() -> None:
    wide = job_of("wide", spec=spec_of("wide", elastic={"min": 3, "max": 3}))
    promise = SlotPromise(at=NOW, slots={"n": [2, 3]}, generation=0)
    plan = decided(replace(wide, progress=JobProgress(promise=promise)))
    assert plan["wide"].action is Action.START
    assert {2, 3} < set(plan["wide"].allocation["n"])


def test_a_higher_priority_that_fits_beside_a_promise_leaves_the_job_its_promised_slots() -> None:
    """The higher priority came since, and gets other slots: nobody was stopped in vain."""
    promise = SlotPromise(at=NOW - timedelta(seconds=5), slots={"n": [0]}, generation=0)
    stopped = job_of("stopped", spec=spec_of("stopped", elastic=ONE, priority=10), age_s=60.0)
    heir = job_of("heir", spec=spec_of("heir", elastic=ONE, priority=30), age_s=20.0)
    heir = replace(heir, progress=JobProgress(promise=promise))
    higher = job_of("higher", spec=spec_of("higher", elastic=PAIR, priority=90), age_s=1.0)
    plan = decided(stopped, heir, higher)
    assert {one.action for one in plan.values()} == {Action.START}
    assert plan["heir"].allocation == {"n": (0,)}


def test_a_higher_priority_that_does_not_fit_beside_a_promise_takes_its_slots() -> None:
    promise = SlotPromise(at=NOW - timedelta(seconds=5), slots={"n": [0]}, generation=0)
    heir = job_of("heir", spec=spec_of("heir", elastic=ONE, priority=30), age_s=20.0)
    heir = replace(heir, progress=JobProgress(promise=promise))
    higher = job_of("higher", spec=spec_of("higher", elastic={"min": 4, "max": 4}, priority=90), age_s=1.0)
    plan = decided(heir, higher)
    assert (plan["heir"].action, plan["higher"].action) == (Action.WAIT, Action.START)


def decided(*jobs: Job) -> dict[str, Decision]:
    snapshot = replace(snapshot_of([node_of("n", slots=4)]), jobs={job.id: job for job in jobs})
    return {one.job_id: one for one in decide(build_round(snapshot), policy("goodput"), solve).decisions}
