"""Outlook of a job on its deadline in a round, and its text for users."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from headway.contract.spec import MAX_SLOTS
from headway.contract.views.forecasts import DeadlineOutlook, DeadlineVerdict
from service.domain.allocation.decision.reason_texts import named
from service.domain.allocation.inputs.round import Round, build_round
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.deadline_plan import Miss, PlannedRun


@dataclass(frozen=True, slots=True)
class _Times:
    """Conversion of the seconds of a plan to times."""

    now: datetime

    def at(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def text(self, seconds: float) -> str:
        return f"{self.at(seconds):%Y-%m-%d %H:%M} UTC"


def outlook_of(round_: Round, row: int) -> DeadlineOutlook | None:
    """Return the outlook of a job on its deadline; None for a job without one."""
    job, plan = round_.jobs[row], round_.contest.deadlines
    deadline = job.spec.goal.deadline
    if deadline is None:
        return None
    times = _Times(round_.snapshot.now)
    run = plan.met.get(row)
    if run is not None:
        verdict = DeadlineVerdict.FEASIBLE if run.start_s <= 0 else DeadlineVerdict.FEASIBLE_FROM
        return DeadlineOutlook(
            verdict=verdict,
            deadline=deadline,
            device_kind=round_.columns.by_kind.kind_name(run.column),
            slots=int(round_.columns.configurations.slots[run.column]),
            starts_at=times.at(run.start_s),
            finish_p90_at=times.at(run.end_s),
            message=_met_text(round_, row, run, times),
        )
    miss = plan.missed.get(row)
    if miss is None:
        return DeadlineOutlook(
            verdict=DeadlineVerdict.UNKNOWN,
            deadline=deadline,
            message="its deadline has no forecast yet: its work is known once its script reports it or a job of its "
            "class has ended, and its speed once it is measured",
        )
    return DeadlineOutlook(
        verdict=DeadlineVerdict.INFEASIBLE,
        deadline=deadline,
        nearest_deadline=None if miss.earliest is None else times.at(miss.earliest.end_s),
        message=_miss_text(round_, row, miss, times),
    )


def deadline_text(round_: Round, row: int) -> str:
    """Return the text on a job's deadline for the end of a decision's message; empty without a deadline."""
    outlook = outlook_of(round_, row)
    return "" if outlook is None else outlook.message


def room_for_deadlines(round_: Round, row: int) -> str:
    """Return text on the jobs that now get slots of this job for their deadlines; empty without any."""
    contest, slots = round_.contest, np.append(round_.columns.configurations.slots, 0)
    held = slots[round_.given.current]
    least = slots[contest.seats.smallest]
    rows = np.flatnonzero(contest.due & (least > held))
    rows = rows[rows != row]
    if not len(rows):
        return ""
    jobs = named([round_.jobs[one] for one in rows.tolist()], round_.jobs[row].spec.project)
    return f"makes room for the deadline of {jobs}"


def nearest_slots(snapshot: Snapshot, job_id: str) -> int | None:
    """Return the smallest size beyond `elastic.max` with which a job would meet its deadline; None if none does."""
    job = snapshot.jobs[job_id]
    most = sum(len(node.slots) for node in snapshot.nodes.values())
    elastic = job.spec.elastic.model_copy(
        update={"max": min(max(most, job.spec.elastic.max), MAX_SLOTS), "sizes": "any"}
    )
    larger = replace(job, spec=job.spec.model_copy(update={"elastic": elastic}))
    round_ = build_round(replace(snapshot, jobs={**snapshot.jobs, job_id: larger}))
    row = next(row for row, one in enumerate(round_.jobs) if one.id == job_id)
    run = round_.contest.deadlines.met.get(row)
    return None if run is None else int(round_.columns.configurations.slots[run.column])


def _met_text(round_: Round, row: int, run: PlannedRun, times: _Times) -> str:
    deadline, place = round_.jobs[row].spec.goal.deadline, round_.columns.text_of(run.column)
    promise = f"its deadline ({deadline:%Y-%m-%d %H:%M} UTC) is met on {place} with 90 %"
    if run.start_s <= 0:
        return f"{promise}, by {times.text(run.end_s)}"
    return f"{promise} from {times.text(run.start_s)} on, by {times.text(run.end_s)}"


def _miss_text(round_: Round, row: int, miss: Miss, times: _Times) -> str:
    job = round_.jobs[row]
    text = f"its deadline ({job.spec.goal.deadline:%Y-%m-%d %H:%M} UTC) will be missed: "
    due = [one for one in miss.rivals if one in round_.contest.deadlines.met]
    if due:
        rivals = named([round_.jobs[one] for one in due], job.spec.project)
        text += f"the deadlines of {rivals} leave too few slots, and the fewest jobs miss this way"
    elif miss.rivals:
        rivals = named([round_.jobs[one] for one in miss.rivals], job.spec.project)
        text += f"the smallest sizes of {rivals} leave too few slots; a higher priority precedes them"
    else:
        text += "no size that its job file allows ends in time"
    if miss.earliest is None:
        return text
    place = round_.columns.text_of(miss.earliest.column)
    return f"{text}; the nearest feasible deadline is {times.text(miss.earliest.end_s)}, on {place}"
