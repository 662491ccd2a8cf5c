"""Texts for users on why a job may not have a configuration now."""

from __future__ import annotations

import math

from service.domain.allocation.configurations.resuming import why_not_resumed, why_unmeasured
from service.domain.allocation.inputs.notes import MIN_GAIN, MIN_RUNTIME_S, Note
from service.domain.cluster.snapshot import Snapshot
from service.domain.contention.rate import recent_changes
from service.domain.contention.tenure import is_leased
from service.domain.jobs.job import Job

_NOTES = {
    Note.CURRENT: "current",
    Note.NOT_WORTH_IT: "not expected to be faster than fewer slots, as measured",
    Note.UNPROVEN: "not measured yet: tried on free slots only, by one job per node at a time",
    Note.TOO_LATE: "its P90 finish is after the job's deadline",
    Note.NO_MEMORY: "a rank would need more memory than its device has, by what was measured at another size",
    Note.MAY_NOT_LAST: "another job is expected to need the slots before they pay for a restart",
    Note.RESERVED: "its slots go to a job of a higher priority, or one that has waited longer or gains more than a stop costs",
}


def note_text(note: Note, job: Job, snapshot: Snapshot) -> str:
    """Return the reason that a job may not have a configuration now; empty if it may."""
    text = _NOTES.get(note, "")
    match note:
        case Note.TOO_YOUNG:
            # A clock that was set back may have dated the change into the future.
            ran_s = max(0, math.floor((snapshot.now - job.state_since).total_seconds()))
            text = f"the job started or changed {ran_s} s ago; a change waits until {MIN_RUNTIME_S:.0f} s"
        case Note.NOT_MEASURED:
            text = why_unmeasured(job)
        case Note.UNKNOWN_RESUME:
            text = why_not_resumed(job)
        case Note.BACK_OFF:
            text = f"new ranks did not come up; retried from {job.grow_after:%H:%M:%S} UTC on"
        case Note.AT_REST if is_leased(job, snapshot.contention, snapshot.now):
            text = "the policy changes a job only after its lease of the slots, or an epoch on them"
        case Note.AT_REST:
            recent = recent_changes(job.progress, snapshot.now)
            cost_s = sum(one.cost_s for one in recent)
            text = f"a change does not pay off: {len(recent)} in ten minutes cost {cost_s:.1f} s of training, or the job ends soon"
        case Note.NO_GAIN:
            change = "pause" if job.live else "restart"
            text = f"not {MIN_GAIN - 1:.0%} faster than now: not worth a {change}"
        case Note.OVER_BUDGET:
            left = snapshot.limits[job.id].left_usd
            text = f"would cost more until its end than the ${left:,.2f} that it may still spend"
        case Note.DEADLINE:
            text = f"no time is left before its deadline ({job.spec.goal.deadline:%Y-%m-%d %H:%M} UTC) to lose a spot machine"
        case Note.OTHER_MARKET:
            limit = snapshot.market_limits[job.id]
            text = (
                f"{limit.on_demand} on-demand and {limit.spot} spot machines are held for it: {limit.reason}"
            )
    return text
