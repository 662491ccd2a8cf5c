"""Questions that the pages ask before an action."""

from __future__ import annotations

from collections.abc import Mapping

_QUESTIONS: Mapping[str, str] = {
    "cancel": "Cancel {name}? It saves a last checkpoint if its script supports that, and ends.",
    "pause": "Pause {name}? It saves a checkpoint if its script supports that, frees its slots, and waits until it is resumed.",
    "resume": "Resume {name}? It continues as soon as slots are free, from its checkpoint if it has one.",
    "resize": "Change the size of {name}?",
    "prioritize": "Change the priority of {name}? Each 25 points double its weight, from the next round on.",
    "cancel-sweep": "Cancel {name}? Every trial that has not ended saves a last checkpoint if its script supports that, and ends.",
    "pause-sweep": "Pause {name}? Every trial that has not ended saves a checkpoint if its script supports that, and frees its slots.",
    "resume-sweep": "Resume {name}? Its paused trials continue as soon as slots are free.",
    "prioritize-sweep": "Change the priority of every trial of {name} that has not ended? Each 25 points double its weight, from the next round on.",
    "policy": "Change the policy to {name}? It applies from the next round on, and jobs may change their sizes.",
    "drain": "Drain {name}? Its jobs move to other nodes, and it gets no new ones.",
    "cordon": "Cordon {name}? Its jobs continue, and it gets no new ones.",
    "uncordon": "Uncordon {name}? It gets jobs again.",
    "quarantine": "Quarantine slot {name}? A job on it moves away, and it gets no other until it is released.",
    "release": "Release slot {name} from quarantine? It gets jobs again at the next round.",
}
"""Confirmation questions by action."""


def question(action: str, name: str) -> str:
    """Return the question before an action on a job, node, slot or policy."""
    return _QUESTIONS[action].format(name=name)
