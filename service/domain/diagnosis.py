"""What is wrong with a cluster, from a few facts about it: each finding with why it matters and what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headway.contract.agents import NodeState
from headway.contract.diagnosis import Check, Level
from headway.contract.jobs import JobState
from service.domain.silence import SilenceRule

LEADER_LATE_S = 15.0
"""A leader renews its term every few seconds, and another takes over after ten."""
COMMAND_LATE_S = 30.0
"""A command is pushed again every five seconds, and an agent takes it up at once."""
LONGEST_CHANGE_S = 900.0
"""A job is between two states for the time of a start or of a checkpoint; orders that are not followed end sooner."""
SAID_FOR = timedelta(days=7)
"""So long it is said that the database came from a backup."""
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node: its agent's last word, and what of it is out of use."""

    name: str
    state: NodeState
    seen_at: datetime
    agent_version: str
    quarantined: int
    unacknowledged: int
    """Commands that its agent was sent and has not taken up for `COMMAND_LATE_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job that has not ended."""

    name: str
    state: JobState
    state_since: datetime
    blocked_by_budget: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a diagnosis rests on. The moments are null for what never was."""

    nodes: Sequence[NodeFacts]
    jobs: Sequence[JobFacts]
    led_at: datetime | None
    """When a leader last renewed its term."""
    known_until: datetime | None
    restored_at: datetime | None
    """When the database was brought back from a backup, which knew everything until `known_until`."""


def diagnose(facts: Facts, *, version: str, silence: SilenceRule, now: datetime) -> list[Check]:
    """Every check in a fixed order, well or not."""
    checks = [
        _leader(facts, now),
        _ready(facts.nodes),
        _lost(facts.nodes),
        _silent(facts.nodes, silence, now),
        _versions(facts.nodes, version),
        _quarantined(facts.nodes),
        _commands(facts.nodes),
        _stuck(facts.jobs, now),
        _budgets(facts.jobs),
    ]
    return [*checks, *_restored(facts, now)]


def _fine(name: str, found: str) -> Check:
    return Check(name=name, level=Level.OK, found=found)


def _leader(facts: Facts, now: datetime) -> Check:
    if facts.led_at is not None and (now - facts.led_at).total_seconds() <= LEADER_LATE_S:
        return _fine("scheduler", "A scheduler leads.")
    since = "has ever led" if facts.led_at is None else f"has led for {_ago(now, facts.led_at)}"
    return Check(
        name="scheduler",
        level=Level.FAIL,
        found=f"No scheduler {since}.",
        why="Jobs train on, but none is started, resized or recovered.",
        hint="Start one: python -m service scheduler; see its log if it runs.",
    )


def _ready(nodes: Sequence[NodeFacts]) -> Check:
    ready = sum(node.state is NodeState.READY for node in nodes)
    found = f"{ready} of {len(nodes)} are READY."
    if ready:
        return _fine("nodes", found)
    return Check(
        name="nodes",
        level=Level.WARN,
        found=found,
        why="No job can start.",
        hint="Add one: headway join-token create, then on the host headway agent; or headway uncordon NODE",
    )


def _lost(nodes: Sequence[NodeFacts]) -> Check:
    lost = [node.name for node in nodes if node.state is NodeState.LOST]
    if not lost:
        return _fine("lost nodes", "None is LOST.")
    return Check(
        name="lost nodes",
        level=Level.WARN,
        found=f"{_names(lost)} LOST.",
        why="Their slots stand idle, and their jobs went elsewhere or wait.",
        hint="On the host, start its agent again (systemctl restart headway-agent) and see its log.",
    )


def _silent(nodes: Sequence[NodeFacts], silence: SilenceRule, now: datetime) -> Check:
    silence_s = silence.silence_of(len(_here(nodes)))
    silent = [node.name for node in _here(nodes) if (now - node.seen_at).total_seconds() > silence_s]
    if not silent:
        return _fine("reports", "Every agent reports.")
    return Check(
        name="reports",
        level=Level.WARN,
        found=f"{_names(silent)} not heard of for more than {silence_s:.0f} s.",
        why="Nodes that stay silent are LOST, and their ranks end with their lease.",
        hint="See whether the agents reach this API: curl URL/livez on their hosts.",
    )


def _versions(nodes: Sequence[NodeFacts], version: str) -> Check:
    here = _here(nodes)
    other = sorted({node.agent_version for node in here} - {version})
    if not other:
        return _fine("agents", f"Every agent is of version {version}.")
    names = _names(node.name for node in here if node.agent_version in other)
    return Check(
        name="agents",
        level=Level.WARN,
        found=f"The service is of version {version}, and agents are of {', '.join(other)}: {names}.",
        why="Only neighbouring versions are tested together, and what is new in one does nothing in the other.",
        hint="Upgrade the service first, then the agents, while their jobs train: pip install -U 'headway[agent,train]' "
        "and restart them.",
    )


def _quarantined(nodes: Sequence[NodeFacts]) -> Check:
    count = sum(node.quarantined for node in nodes)
    if not count:
        return _fine("quarantine", "No slot is kept from jobs.")
    names = _names(node.name for node in nodes if node.quarantined)
    return Check(
        name="quarantine",
        level=Level.WARN,
        found=f"{count} slots are kept from jobs, on {names}.",
        why="Their devices have failed or were slow.",
        hint="See why: headway nodes; release one that was mended: headway release NODE SLOT",
    )


def _commands(nodes: Sequence[NodeFacts]) -> Check:
    late = [node for node in _here(nodes) if node.unacknowledged]
    if not late:
        return _fine("commands", "Every command was taken up.")
    count = sum(node.unacknowledged for node in late)
    return Check(
        name="commands",
        level=Level.FAIL,
        found=f"{count} commands wait for {_names(node.name for node in late)} for more than {COMMAND_LATE_S:.0f} s.",
        why="Jobs there neither start nor change nor stop.",
        hint="The agent does not reach Redis, or is older than what it is told: see its log, and upgrade it.",
    )


def _stuck(jobs: Sequence[JobFacts], now: datetime) -> Check:
    between = {JobState.STARTING, JobState.RESIZING, JobState.RECOVERING, JobState.CANCELLING}
    stuck = [
        job
        for job in jobs
        if job.state in between and (now - job.state_since).total_seconds() > LONGEST_CHANGE_S
    ]
    if not stuck:
        return _fine("jobs", "None is stuck between two states.")
    said = _names(f"{job.name} ({job.state} for {_ago(now, job.state_since)})" for job in stuck)
    return Check(
        name="jobs",
        level=Level.WARN,
        found=f"Between two states: {said}.",
        why="They hold slots and do not train.",
        hint="See what they wait for: headway events JOB; end them: headway cancel --force JOB",
    )


def _budgets(jobs: Sequence[JobFacts]) -> Check:
    blocked = [job.name for job in jobs if job.blocked_by_budget]
    if not blocked:
        return _fine("budgets", "No job waits for money.")
    return Check(
        name="budgets",
        level=Level.WARN,
        found=f"Out of money: {_names(blocked)}.",
        why="They get nothing before a budget has something left.",
        hint="See which: headway budget list; raise it, or wait for its next period.",
    )


def _here(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Those that are not given up."""
    return [node for node in nodes if node.state is not NodeState.LOST]


def _restored(facts: Facts, now: datetime) -> Iterator[Check]:
    if facts.restored_at is None or facts.known_until is None or now - facts.restored_at > SAID_FOR:
        return
    yield Check(
        name="restore",
        level=Level.WARN,
        found=f"The database was brought back from {facts.known_until:%Y-%m-%d %H:%M} UTC at "
        f"{facts.restored_at:%Y-%m-%d %H:%M} UTC.",
        why="What happened in between is in no job's bill, and jobs that were submitted then are gone.",
        hint="Submit those jobs again; this is said for a week.",
    )


def _names(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def _ago(now: datetime, then: datetime) -> str:
    seconds = (now - then).total_seconds()
    return (
        f"{seconds:.0f} s"
        if seconds < 600
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
