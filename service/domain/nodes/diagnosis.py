"""Checks for problems of a cluster, from a few facts. Each finding states its effect and a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headway.contract.agents import NodeState
from headway.contract.standstills import Standstill
from headway.contract.values.listing import some_of
from headway.contract.values.quantities import duration
from headway.contract.views.diagnosis import Check, Level
from headway.contract.views.jobs import JobState
from service.domain.nodes.silence import SilenceRule

LEADER_LATE_S = 15.0
"""Seconds without renewal after which no scheduler leads. A leader renews its term every few seconds, and
another scheduler takes over after ten.
"""
COMMAND_LATE_S = 30.0
"""Seconds after which a command counts as late. The service resends it every five seconds, and an agent takes
it up at once.
"""
LONGEST_CHANGE_S = 900.0
"""Seconds in a transitional state after which a job counts as stuck. A start or a checkpoint takes less, and
orders that are not followed time out earlier.
"""
RESTORE_SHOWN = timedelta(days=7)
"""Time for which a diagnosis reports that the database was restored from a backup."""
STANDSTILLS_SHOWN = timedelta(hours=1)
"""Time for which a diagnosis reports that the loop of a process stood still."""
_NAMED = 3
"""Maximum number of names in a finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts about a node: the last report of its agent, and the resources that are out of use."""

    name: str
    state: NodeState
    seen_at: datetime
    agent_version: str
    quarantined: int
    unacknowledged: int
    """Number of commands sent to the agent that it has not acknowledged for `COMMAND_LATE_S`."""
    withheld: str = ""
    """Reason that the agent starts no jobs; empty if it starts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts about a job that has not ended."""

    name: str
    state: JobState
    state_since: datetime
    blocked_by_budget: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFacts:
    """Last measured save of a RUNNING job, and the shortest time in which an engine kills one of its nodes after SIGTERM."""

    job: str
    save_s: float
    kill_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Input of a diagnosis. A time is None if the event has never happened."""

    nodes: Sequence[NodeFacts]
    jobs: Sequence[JobFacts]
    led_at: datetime | None
    """Time at which a leader last renewed its term."""
    known_until: datetime | None
    restored_at: datetime | None
    """Time at which the database was restored from a backup; `known_until` is the time of that backup."""
    saves: Sequence[SaveFacts] = ()


def diagnose(facts: Facts, *, version: str, silence: SilenceRule, now: datetime) -> list[Check]:
    """Return every check in a fixed order, with or without a finding."""
    checks = [
        _leader(facts, now),
        _ready(facts.nodes),
        _lost(facts.nodes),
        _silent(facts.nodes, silence, now),
        _versions(facts.nodes, version),
        _quarantined(facts.nodes),
        _isolation(facts.nodes),
        _commands(facts.nodes),
        _stuck(facts.jobs, now),
        _budgets(facts.jobs),
        _saves(facts.saves),
    ]
    return [*checks, *_restored(facts, now)]


def standing(standstills: Sequence[Standstill]) -> Check:
    """Return the check of the standstills of the service's loops in the last `STANDSTILLS_SHOWN`."""
    if not standstills:
        return _fine("loops", "No loop of the service stood still for more than 0.1 s in the last hour.")
    longest = max(standstills, key=lambda one: one.stood_s)
    where = f" at {longest.stack[-1]}" if longest.stack else ""
    times = "once" if len(standstills) == 1 else f"{len(standstills)} times"
    return Check(
        name="loops",
        level=Level.WARN,
        found=f"A loop of the service stood still {times} in the last hour, for at most {longest.stood_s:.1f} s:"
        f" {longest.process}{where}.",
        why="Meanwhile this process answered no request and took no report.",
        hint="Send its log line `loop_stood_still`, which has the whole stack, to whoever maintains Headway.",
    )


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
        why="Running jobs continue to train, but no job is started, resized or recovered.",
        hint="Start a scheduler: python -m service scheduler; if one runs, see its log.",
    )


def _ready(nodes: Sequence[NodeFacts]) -> Check:
    ready = sum(node.state is NodeState.READY for node in nodes)
    found = f"{ready} of {len(nodes)} nodes are READY."
    if ready:
        return _fine("nodes", found)
    return Check(
        name="nodes",
        level=Level.WARN,
        found=found,
        why="No job can start.",
        hint="Add a node: headway join-token create, then on the host headway agent; or headway uncordon NODE",
    )


def _lost(nodes: Sequence[NodeFacts]) -> Check:
    lost = [node.name for node in nodes if node.state is NodeState.LOST]
    if not lost:
        return _fine("lost nodes", "No node is LOST.")
    return Check(
        name="lost nodes",
        level=Level.WARN,
        found=f"LOST: {_names(lost)}.",
        why="Their slots are idle, and their jobs moved to other nodes or wait.",
        hint="On the host, restart the agent (systemctl restart headway-agent) and see its log.",
    )


def _silent(nodes: Sequence[NodeFacts], silence: SilenceRule, now: datetime) -> Check:
    silence_s = silence.silence_of(len(_here(nodes)))
    silent = [node.name for node in _here(nodes) if (now - node.seen_at).total_seconds() > silence_s]
    if not silent:
        return _fine("reports", "Every agent reports.")
    return Check(
        name="reports",
        level=Level.WARN,
        found=f"No report for more than {silence_s:.0f} s from {_names(silent)}.",
        why="Nodes that stay silent become LOST, and their ranks stop when the lease expires.",
        hint="Check that the agents reach this API: run curl URL/livez on their hosts.",
    )


def _versions(nodes: Sequence[NodeFacts], version: str) -> Check:
    here = _here(nodes)
    other = sorted({node.agent_version for node in here} - {version})
    if not other:
        return _fine("agents", f"Every agent has version {version}.")
    names = _names(node.name for node in here if node.agent_version in other)
    return Check(
        name="agents",
        level=Level.WARN,
        found=f"The service has version {version}, and agents have {', '.join(other)}: {names}.",
        why="Only neighbouring versions are tested together, and features new in one have no effect in the other.",
        hint="Upgrade the service first, then the agents, while their jobs train: pip install -U 'headway[agent,train]' "
        "and restart them.",
    )


def _quarantined(nodes: Sequence[NodeFacts]) -> Check:
    count = sum(node.quarantined for node in nodes)
    if not count:
        return _fine("quarantine", "No slot is in quarantine.")
    names = _names(node.name for node in nodes if node.quarantined)
    return Check(
        name="quarantine",
        level=Level.WARN,
        found=f"Slots in quarantine: {count}, on {names}.",
        why="These slots get no jobs, because their devices have failed or were slow.",
        hint="See the reasons with headway nodes; after a repair: headway release NODE SLOT",
    )


def _isolation(nodes: Sequence[NodeFacts]) -> Check:
    withheld = [node for node in _here(nodes) if node.withheld]
    if not withheld:
        return _fine("isolation", "No agent found a gap in the isolation between jobs.")
    return Check(
        name="isolation",
        level=Level.FAIL,
        found=f"Not taking jobs: {_names(node.name for node in withheld)}. {withheld[0].name}: {withheld[0].withheld}.",
        why="A job there could read the agent's token and other jobs' code, data and output.",
        hint="On the host, fix what the agent's log names (isolation_broken), and restart the agent; see docs/isolation.md.",
    )


def _commands(nodes: Sequence[NodeFacts]) -> Check:
    late = [node for node in _here(nodes) if node.unacknowledged]
    if not late:
        return _fine("commands", "Every command was acknowledged.")
    count = sum(node.unacknowledged for node in late)
    return Check(
        name="commands",
        level=Level.FAIL,
        found=f"Commands not acknowledged for more than {COMMAND_LATE_S:.0f} s: {count}, "
        f"sent to {_names(node.name for node in late)}.",
        why="Jobs on these nodes cannot start, change or stop.",
        hint="The agent does not reach Redis, or does not know a newer command: see its log, and upgrade it.",
    )


def _stuck(jobs: Sequence[JobFacts], now: datetime) -> Check:
    transitional = {JobState.STARTING, JobState.RESIZING, JobState.RECOVERING, JobState.CANCELLING}
    stuck = [
        job
        for job in jobs
        if job.state in transitional and (now - job.state_since).total_seconds() > LONGEST_CHANGE_S
    ]
    if not stuck:
        return _fine("jobs", "No job is stuck between two states.")
    listed = _names(f"{job.name} ({job.state} for {_ago(now, job.state_since)})" for job in stuck)
    return Check(
        name="jobs",
        level=Level.WARN,
        found=f"Between two states: {listed}.",
        why="These jobs hold slots and do not train.",
        hint="See their events with headway events JOB; to end them: headway cancel --force JOB",
    )


def _budgets(jobs: Sequence[JobFacts]) -> Check:
    blocked = [job.name for job in jobs if job.blocked_by_budget]
    if not blocked:
        return _fine("budgets", "No job waits for a budget.")
    return Check(
        name="budgets",
        level=Level.WARN,
        found=f"Out of budget: {_names(blocked)}.",
        why="These jobs get no slots until their budgets have money left.",
        hint="List the budgets with headway budget list; raise one, or wait for its next period.",
    )


def _saves(saves: Sequence[SaveFacts]) -> Check:
    late = [one for one in saves if one.save_s > one.kill_wait_s]
    if not late:
        return _fine("saves", "Every measured save of a running job ends before its nodes are killed.")
    listed = _names(
        f"{one.job} ({one.save_s:.0f} s, killed after {one.kill_wait_s:.0f} s)"
        for one in sorted(late, key=lambda one: (one.kill_wait_s - one.save_s, one.job))
    )
    return Check(
        name="saves",
        level=Level.WARN,
        found=f"A save takes longer than a node lives after SIGTERM: {listed}.",
        why="If all ranks of the job are on nodes that end at once, it falls back to its last checkpoint.",
        hint="Raise KillWait in slurm.conf (pods: HEADWAY_KUBERNETES_GRACE_S), or let the job train on several nodes.",
    )


def _here(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return the nodes that are not LOST."""
    return [node for node in nodes if node.state is not NodeState.LOST]


def _restored(facts: Facts, now: datetime) -> Iterator[Check]:
    if facts.restored_at is None or facts.known_until is None or now - facts.restored_at > RESTORE_SHOWN:
        return
    yield Check(
        name="restore",
        level=Level.WARN,
        found=f"The database went back to its state of {facts.known_until:%Y-%m-%d %H:%M:%S} UTC, by a backup or a failover, "
        f"as noticed at {facts.restored_at:%Y-%m-%d %H:%M:%S} UTC.",
        why="Bills, submits and cancels of the time in between may be lost.",
        hint="Submit those jobs again. This notice is shown for a week.",
    )


def _names(names: Iterable[str]) -> str:
    """Return the first few names and the number of further ones."""
    return some_of(sorted(names), _NAMED)


def _ago(now: datetime, then: datetime) -> str:
    return duration((now - then).total_seconds())
