"""Colours and words of states, the same on every page. A colour never says anything that words beside it do not."""

from __future__ import annotations

import zlib

from headway.contract.agents import NodeState
from headway.contract.jobs import TERMINAL_STATES, JobState, JobView
from headway.contract.nodes import SlotView

HUES = 12
"""How many colours of jobs the style sheet has: `job-0` and so on."""
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
    JobState.PENDING: "waits",
    JobState.STARTING: "starts",
    JobState.RUNNING: "runs",
    JobState.RESIZING: "changes size",
    JobState.RECOVERING: "recovers",
    JobState.PAUSED: "is paused",
    JobState.CANCELLING: "is being cancelled",
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
    """Its class in the style sheet."""
    return _JOB_TONES[state]


def words_of_job(state: JobState) -> str:
    """What the job does, as the rest of a sentence that begins with its name."""
    return _JOB_WORDS[state]


def tone_of_node(state: NodeState) -> str:
    """Its class in the style sheet."""
    return _NODE_TONES[state]


def hue_of(job_id: str) -> int:
    """A job's colour: always the same, and as different as a few colours can be."""
    return zlib.crc32(job_id.encode()) % HUES


def cell_of(slot: SlotView) -> str:
    """The classes of a slot's cell."""
    held = f"job-{hue_of(slot.job_id)}" if slot.job_id else "other" if slot.job_name else "free"
    return f"{held} ill" if slot.quarantine is not None else held


def has_ended(job: JobView) -> bool:
    """Whether nothing will change any more."""
    return job.state in TERMINAL_STATES
