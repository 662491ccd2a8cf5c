"""Colours and words for states, the same on every page. A text accompanies every colour."""

from __future__ import annotations

from collections.abc import Mapping

from headway.contract.agents import NodeState
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView
from headway.contract.views.nodes import SlotView
from service.console.html.palette import colour_of

_JOB_TONES = {
    JobState.PENDING: "wait",
    JobState.STARTING: "move",
    JobState.RUNNING: "good",
    JobState.RESIZING: "move",
    JobState.RECOVERING: "warn",
    JobState.PAUSED: "wait",
    JobState.CANCELLING: "off",
    JobState.SUCCEEDED: "done",
    JobState.FAILED: "bad",
    JobState.CANCELLED: "off",
}
_JOB_WORDS = {
    JobState.PENDING: "is pending",
    JobState.STARTING: "starts",
    JobState.RUNNING: "runs",
    JobState.RESIZING: "changes size",
    JobState.RECOVERING: "recovers",
    JobState.PAUSED: "is paused",
    JobState.CANCELLING: "is ending",
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}
_NODE_TONES = {
    NodeState.READY: "good",
    NodeState.CORDONED: "wait",
    NodeState.DRAINING: "move",
    NodeState.DRAINED: "off",
    NodeState.LOST: "bad",
}


def tone_of_job(state: JobState) -> str:
    """Return the style class of a job state."""
    return _JOB_TONES[state]


def words_of_job(state: JobState) -> str:
    """Return the state of a job as a predicate that follows its name, such as `runs`."""
    return _JOB_WORDS[state]


def tone_of_node(state: NodeState) -> str:
    """Return the style class of a node state."""
    return _NODE_TONES[state]


def cell_of(slot: SlotView, colours: Mapping[str, int]) -> str:
    """Return the style classes of a slot's cell."""
    held = f"job-{colour_of(colours, slot.job_id)}" if slot.job_id else "other" if slot.job_name else "free"
    return f"{held} ill" if slot.quarantine is not None else held


def has_ended(job: JobView) -> bool:
    """Return whether the job is in a final state."""
    return job.state in TERMINAL_STATES
