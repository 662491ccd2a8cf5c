"""Scenes with one job, and short readings of the effects of a life."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from headway.contract.agents import AnyCommand, OrderCommand, RunCommand, StopCommand
from headway.contract.manifest import Name
from headway.contract.runtime import Left, Ready, Switched
from headway.contract.views.stored_files import CheckpointView
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Allocation, Job
from service.domain.jobs.membership import Born
from service.domain.jobs.records import Event
from service.domain.life.effects import Effect, EndAllocation, RecordEvent, ReleaseSlots, SendCommands
from service.domain.life.life import Life
from tests.unit.service.domain.life.cluster import Cluster

JOB = "a"
TWO: Allocation = {"n0": (0, 1)}
THREE: Allocation = {"n0": (0, 1), "n1": (0,)}
FOUR: Allocation = {"n0": (0, 1), "n1": (0, 1)}
_Effect = TypeVar("_Effect", bound=Effect)
_Command = TypeVar("_Command", bound=AnyCommand)


def waiting(resize: str = "live", **fields: object) -> Cluster:
    """Three nodes of two slots, and a job that waits for slots."""
    cluster = Cluster()
    cluster.tables.submit(JOB, **{"elastic": {"min": 1, "max": 4, "resize": resize}, **fields})
    return cluster


def starting(slots: Allocation = TWO, resize: str = "live", **fields: object) -> Cluster:
    """A job whose start has been decided, before any command arrives."""
    cluster = waiting(resize, **fields)
    cluster.start(JOB, slots)
    return cluster


def training(slots: Allocation = TWO, resize: str = "live", **fields: object) -> Cluster:
    """A job that has reported its first step. It follows orders if its `resize` is live."""
    cluster = starting(slots, resize, **fields)
    cluster.settle()
    cluster.take_first_step(JOB)
    cluster.settle()
    return cluster


def prepared(slots: Allocation = THREE, begin: Allocation = TWO, **fields: object) -> Cluster:
    """A job that trains on `begin` while its change to `slots` is prepared, before any command arrives."""
    cluster = training(begin, **fields)
    cluster.change(JOB, slots)
    return cluster


def ordered(slots: Allocation = THREE, begin: Allocation = TWO, **fields: object) -> Cluster:
    """A job whose newcomers are ready, so that the change to `slots` is ordered, before the order arrives."""
    cluster = prepared(slots, begin, **fields)
    switch = job_of(cluster).switch
    assert switch is not None
    for node in {node for node in slots if cluster.agents[node].inbox}:
        deliver(cluster, node)
    for key in [key for key in cluster.processes if key[1] == switch.generation]:
        cluster.get_ready(key)
    for node in slots:
        deliver(cluster, node, commands=False)
    return cluster


def deliver(cluster: Cluster, node: str, *, commands: bool = True) -> None:
    """Deliver what waits at a node: its reports, and its commands before them."""
    agent = cluster.agents[node]
    for _ in range(len(agent.inbox) if commands else 0):
        cluster.take_command(node)
    for _ in range(len(agent.outbox)):
        cluster.take_report(node)


def run_at(cluster: Cluster, node: str) -> RunCommand:
    """The run command that waits at a node."""
    (command,) = cluster.agents[node].inbox
    assert isinstance(command, RunCommand)
    return command


def life_of(cluster: Cluster) -> Life:
    """The life of the job as it would be loaded now."""
    return cluster.tables.life(JOB)


def job_of(cluster: Cluster) -> Job:
    """The job as it is stored."""
    return cluster.tables.jobs[JOB]


def alter(cluster: Cluster, **fields: object) -> Job:
    """Store the job with other values of some fields."""
    job = replace(job_of(cluster), **fields)
    cluster.tables.jobs[JOB] = job
    return job


def history(cluster: Cluster) -> list[str]:
    """The kinds of all events of the job, oldest first."""
    return [event.kind for event in cluster.tables.events[JOB]]


def process_at(cluster: Cluster, node: str, slot: int) -> tuple[str, int, int]:
    """The key of the process on a slot."""
    return next(key for key, one in cluster.processes.items() if (one.node, one.slot) == (node, slot))


def checkpoint_at(samples: int) -> CheckpointView:
    """A complete checkpoint at a position of the first epoch."""
    return CheckpointView(
        name=str(Name(1, 0, samples)),
        generation=1,
        epoch=0,
        samples_in_epoch=samples,
        samples=samples,
        saved_at=None,
        size_bytes=1,
        complete=True,
    )


def exit_of(
    rank: int = 0,
    exit_code: int | None = None,
    signal: int | None = None,
    *,
    stopped_by_agent: bool = False,
    completed: bool = False,
    log_tail: tuple[str, ...] = (),
) -> RankExit:
    """The end of a process; its cause is unknown unless a code or a signal is given."""
    return RankExit(
        rank=rank,
        exit_code=exit_code,
        signal=signal,
        stopped_by_agent=stopped_by_agent,
        completed=completed,
        log_tail=log_tail,
    )


def with_exits(life: Life, exits: dict[Born, RankExit]) -> Life:
    """The life with these ends of processes, without effects."""
    for (generation, rank), exit_ in exits.items():
        life = life.with_exit(generation, replace(exit_, rank=rank))
    return life.settled()


def effects_of(life: Life, kind: type[_Effect]) -> list[_Effect]:
    """The effects of one kind."""
    return [one for one in life.effects if isinstance(one, kind)]


def kinds(life: Life) -> list[str]:
    """The kinds of the events that the life records."""
    return [effect.event.kind for effect in effects_of(life, RecordEvent)]


def event_of(life: Life, kind: str) -> Event:
    """The only event of one kind."""
    (found,) = [one.event for one in effects_of(life, RecordEvent) if one.event.kind == kind]
    return found


def ended(life: Life) -> list[int]:
    """The generations that the life ends."""
    return [one.generation for one in effects_of(life, EndAllocation)]


def freed(life: Life) -> list[int]:
    """The generations whose slots the life releases."""
    return [one.generation for one in effects_of(life, ReleaseSlots)]


def commands_of(life: Life, kind: type[_Command]) -> dict[str, _Command]:
    """The commands of one kind by node, to each of which at most one is sent."""
    sent = [one for effect in effects_of(life, SendCommands) for one in effect.commands]
    found = [(node, command) for node, command in sent if isinstance(command, kind)]
    assert len(dict(found)) == len(found), "two commands of a kind to one node"
    return dict(found)


def runs(life: Life) -> dict[str, RunCommand]:
    """The run commands by node."""
    return commands_of(life, RunCommand)


def orders(life: Life) -> dict[str, OrderCommand]:
    """The orders by node."""
    return commands_of(life, OrderCommand)


def ordered_members(life: Life) -> list[Born]:
    """The processes that the life's orders name, in the order of their ranks."""
    (members,) = {
        tuple((one.born_generation, one.born_rank) for one in o.members) for o in orders(life).values()
    }
    return list(members)


def stops(life: Life) -> list[tuple[str, int, int, str]]:
    """The stops: node, newest and oldest generation of the processes, and mode."""
    sent = [one for effect in effects_of(life, SendCommands) for one in effect.commands]
    return sorted(
        (node, command.generation, command.oldest, command.mode)
        for node, command in sent
        if isinstance(command, StopCommand)
    )


def ready(rank: int, generation: int = 2, ready_s: float = 1.5) -> Ready:
    """A newcomer that waits for its order."""
    return Ready(rank=rank, generation=generation, at_s=0.0, ready_s=ready_s)


def left(rank: int, joined: int = 2) -> Left:
    """A member that leaves generation 1 as ordered."""
    return Left(rank=rank, generation=1, at_s=0.0, samples=110, joined=joined)


def switched(generation: int = 2, world_size: int = 3, lost_steps: int = 0) -> Switched:
    """Rank 0 trains in the ordered generation."""
    return Switched(
        rank=0,
        generation=generation,
        at_s=0.0,
        samples=110,
        world_size=world_size,
        pause_s=0.25,
        lost_steps=lost_steps,
        sync_bytes=4096,
    )
