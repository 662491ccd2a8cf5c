"""A cluster in memory: agents and ranks that obey the commands of the domain, and tables that it changes.

Commands wait in the inbox of their node and reports in its outbox, so that a test delivers them in any order
between nodes, more than once, or late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from headway.contract.agents import (
    AnyCommand,
    OrderCommand,
    RankExited,
    RanksHung,
    RanksStarted,
    Released,
    RunCommand,
    StopCommand,
)
from headway.contract.runtime import CannotMeet, FirstStep, Left, Message, Ready, Switched
from headway.contract.views.jobs import Reason
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Allocation, minus
from service.domain.jobs.membership import Born
from service.domain.life.changes import ChangeInPlace, end_overdue, has_begun_to_end, prepare
from service.domain.life.ends import Aftermath, go_on, has_just_gone, release_node
from service.domain.life.life import Life
from service.domain.life.losses import node_ended, rank_ended, ranks_hung
from service.domain.life.messages import awaits_start, message_taken, ranks_started
from service.domain.life.starts import start_generation, vacate
from tests.unit.service.domain.life.tables import BEGIN, Tables, host

Key: TypeAlias = tuple[str, int, int]
"""Job, and born generation and rank: one process."""


@dataclass
class Process:
    """A process of a job. `role` is the generation that it trains in and its rank there; None for a newcomer.

    `apart` is the newest generation whose members it could not meet.
    """

    node: str
    slot: int
    live: bool
    role: tuple[int, int] | None
    ready: bool = False
    apart: int = 0


@dataclass
class Said:
    """A message of a rank, as its agent passes it on."""

    job_id: str
    who: Born
    message: Message


Report: TypeAlias = RanksStarted | RankExited | Released | RanksHung | Said


@dataclass
class Agent:
    """A node with the commands that it remembers."""

    inbox: list[AnyCommand] = field(default_factory=list)
    outbox: list[Report] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    fences: dict[str, int] = field(default_factory=dict)
    """The newest generation that was started or stopped, by job."""


class Cluster:
    """Tables, agents and processes, and everything that can happen between them."""

    def __init__(self, nodes: int = 3) -> None:
        names = [f"n{number}" for number in range(nodes)]
        self.tables = Tables({name: host(name) for name in names})
        self.agents = {name: Agent() for name in names}
        self.processes: dict[Key, Process] = {}
        self.orders: dict[tuple[str, str], OrderCommand] = {}
        """The newest order that a node has, by node and job."""
        self.started: dict[tuple[str, int], set[str]] = {}
        self.samples = 100

    # The service

    def store(self, life: Life) -> None:
        """Carry out what the domain decided, and put the commands into the inboxes."""
        self.tables.store(life)
        for node, command in self.tables.sent:
            self.agents[node].inbox.append(command)
        self.tables.sent.clear()

    def start(self, job_id: str, slots: Allocation) -> None:
        """Carry out a round's decision to start a job."""
        self.tables.grant(job_id, slots)
        life = self.tables.life(job_id)
        self.store(start_generation(life, slots, reason=Reason.ALLOCATED, message="there is room"))

    def change(self, job_id: str, slots: Allocation) -> None:
        """Carry out a round's decision to change a job's slots, unless it has begun to end."""
        job = self.tables.jobs[job_id]
        if has_begun_to_end(self.tables.life(job_id)):
            return
        self.tables.grant(job_id, minus(slots, job.allocation))
        life = self.tables.life(job_id)
        change = ChangeInPlace(
            target=slots, reason=Reason.BETTER_ALLOCATION, message="more goodput", round_id="r1"
        )
        after = prepare(life, change) if job.live else None
        self.store(after or vacate(life, slots, reason=change.reason, message=change.message))

    def adapt(self, job_id: str, global_batch: int) -> None:
        """Carry out a round's decision to change a job's batch, which only a live job takes."""
        life = self.tables.life(job_id)
        if life.job.live and not has_begun_to_end(life):
            change = ChangeInPlace(
                target=life.job.allocation,
                reason=Reason.BETTER_BATCH,
                message="a larger batch",
                round_id="r1",
                global_batch=global_batch,
            )
            after = prepare(life, change)
            assert after is not None, "every member has a store"
            self.store(after)

    def vacate(self, job_id: str) -> None:
        """Carry out a round's decision to take all slots from a job, unless it has begun to end."""
        life = self.tables.life(job_id)
        if not has_begun_to_end(life):
            self.store(vacate(life, None, reason=Reason.PREEMPTED, message="others need the slots"))

    def overdue(self) -> None:
        """End the changes in place whose deadline has passed."""
        for job_id in self.tables.jobs:
            self.store(end_overdue(self.tables.life(job_id)))

    def lose(self, node: str) -> None:
        """Lose a node with all its processes, and let its jobs recover."""
        self.tables.mark(node, lost=True)
        self.agents[node] = Agent()
        self.orders = {key: order for key, order in self.orders.items() if key[0] != node}
        for key in [key for key, one in self.processes.items() if one.node == node]:
            del self.processes[key]
        for job_id in sorted({holder for (at, _), (holder, _) in self.tables.grants.items() if at == node}):
            life = self.tables.life(job_id)
            self.store(_gone_on(life, node_ended(life, node, f"node {node} has not reported")))

    def take_back(self, node: str) -> None:
        """Schedule on a node again whose agent has come back and runs nothing."""
        self.tables.mark(node, lost=False)

    def take_report(self, node: str, *, times: int = 1) -> None:
        """Process the oldest report of a node, `times` times."""
        report = self.agents[node].outbox.pop(0)
        for _ in range(times):
            life = self.tables.life(report.job_id)
            self.store(self._after(node, life, report))

    def _after(self, node: str, life: Life, report: Report) -> Life:
        crew = life.crew
        match report:
            case RanksStarted():
                if not awaits_start(life, node, report.generation):
                    return life
                nodes = self.started.setdefault((report.job_id, report.generation), set())
                nodes.add(node)
                return ranks_started(life, report.how, len(nodes))
            case RankExited():
                who = (report.generation, report.rank)
                if not crew.runs_on(who, node):
                    return life
                exit_ = _rank_exit(report)
                return rank_ended(life.with_exit(report.generation, exit_), who, exit_)
            case Released():
                return _gone_on(life, release_node(life, report.generation, node, slots=report.slots))
            case RanksHung():
                return ranks_hung(life, self.tables.hosts[node], report)
            case Said():
                knows = crew.runs_on(report.who, node)
                allowed = crew.may_report(report.who, report.message.generation, report.message.rank)
                return message_taken(life, report.who, report.message) if knows and allowed else life

    # The agents

    def take_command(self, node: str, *, again: bool = False) -> None:
        """Let an agent take the oldest command of its inbox; with `again`, it is pushed once more."""
        agent = self.agents[node]
        command = agent.inbox[0] if again else agent.inbox.pop(0)
        if command.command_id in agent.taken:
            return
        agent.taken.add(command.command_id)
        match command:
            case RunCommand():
                self._run(node, agent, command)
            case OrderCommand():
                known = self.orders.get((node, command.job_id))
                if known is None or command.generation > known.generation:
                    self.orders[node, command.job_id] = command
            case StopCommand():
                fence = agent.fences.get(command.job_id, 0)
                agent.fences[command.job_id] = max(fence, command.generation)
                self._stop(node, command)

    def _run(self, node: str, agent: Agent, command: RunCommand) -> None:
        if command.generation <= agent.fences.get(command.job_id, 0):
            return
        agent.fences[command.job_id] = command.generation
        taken = {one.slot for one in self.processes.values() if one.node == node}
        for rank in command.ranks:
            assert rank.slot not in taken, f"slot {rank.slot} of {node} runs two ranks"
            self.processes[command.job_id, command.generation, rank.rank] = Process(
                node=node,
                slot=rank.slot,
                live=command.live,
                role=None if command.joins else (command.generation, rank.rank),
            )
        self._report(node, RanksStarted(**_entry(command.job_id, command.generation), how="zygote"))

    def _stop(self, node: str, command: StopCommand) -> None:
        job_id = command.job_id
        here = [
            key
            for key, one in self.processes.items()
            if one.node == node and key[0] == job_id and command.oldest <= key[1] <= command.generation
        ]
        for key in here:
            self._end(key, exit_code=143, stopped_by_agent=True)
        for generation in sorted({key[1] for key in here} | {command.generation}):
            self._report(node, Released(**_entry(job_id, generation)))

    def _end(self, key: Key, **how: object) -> None:
        job_id, generation, rank = key
        node = self.processes.pop(key).node
        self._report(node, RankExited(**_entry(job_id, generation), rank=rank, **how))  # type: ignore[arg-type]

    def _report(self, node: str, report: Report) -> None:
        self.agents[node].outbox.append(report)

    # The ranks

    def end(self, key: Key, **how: object) -> None:
        """End a process by itself. A start without members that can go on ends with it."""
        job_id, generation, _ = key
        process = self.processes[key]
        self._end(key, **how)
        rest = [other for other in self.processes if self._is_beside(other, key, process)]
        if not process.live:
            for other in rest:
                self._end(other, exit_code=1)
            rest = []
        slots = [process.slot] if rest else None
        self._report(process.node, Released(**_entry(job_id, generation), slots=slots))

    def _is_beside(self, other: Key, key: Key, process: Process) -> bool:
        return other[:2] == key[:2] and self.processes[other].node == process.node

    def complete(self, job_id: str) -> None:
        """Let every member of a job finish its training, if all have been started: they cannot train before."""
        commands = [command for agent in self.agents.values() for command in agent.inbox]
        if any(isinstance(one, RunCommand) and one.job_id == job_id and not one.joins for one in commands):
            return
        if any(
            key[0] == job_id and one.role is not None and one.apart > one.role[0]
            for key, one in self.processes.items()
        ):
            return
        for key in [key for key, one in self.processes.items() if key[0] == job_id and one.role is not None]:
            if key in self.processes:
                process = self.processes[key]
                self._end(key, exit_code=0, completed=True)
                if not any(self._is_beside(other, key, process) for other in self.processes):
                    self._report(process.node, Released(**_entry(job_id, key[1])))

    def take_first_step(self, job_id: str) -> None:
        """Let rank 0 of a job report its first step."""
        for key, one in self.processes.items():
            if key[0] == job_id and one.role is not None and one.role[1] == 0:
                self.say(key, FirstStep, samples=self.samples, live=one.live)

    def get_ready(self, key: Key) -> None:
        """Let a newcomer report that it waits for its order."""
        self.processes[key].ready = True
        self.say(key, Ready, role=(key[1], key[2]), ready_s=0.1)

    def hang(self, key: Key) -> None:
        """Let the agent report that the ranks of a start hang."""
        report = RanksHung(**_entry(key[0], key[1]), silent_s=700.0, usual_s=1.0, stacks=["stack"])
        self._report(self.processes[key].node, report)

    def switch(self, job_id: str, **leaving: object) -> None:
        """Let the members of the newest order train together, and the others leave, if all of them have it.

        `leaving` is the end of the processes of those that leave, by default exit code 0.
        """
        mine = {key: one for key, one in self.processes.items() if key[0] == job_id}
        orders = [self.orders.get((one.node, job_id)) for one in mine.values()]
        order = max((one for one in orders if one is not None), key=lambda one: one.generation, default=None)
        if order is None or any(one is None or one.generation < order.generation for one in orders):
            return
        ranks = {(job_id, one.born_generation, one.born_rank): one.rank for one in order.members}
        if not set(ranks) <= set(mine) or any(
            one.role is not None and one.role[0] >= order.generation for one in mine.values()
        ):
            return
        if any(mine[key].role is None and not mine[key].ready for key in ranks):
            return
        if any(one.apart >= order.generation for one in mine.values()):
            return
        self.samples += 10
        for key, one in mine.items():
            if key in ranks:
                one.role = (order.generation, ranks[key])
                said = {"world_size": len(ranks), "pause_s": 0.1, "lost_steps": 0, "sync_bytes": 0}
                self.say(key, Switched, samples=self.samples, **said)
            elif one.role is not None:
                self.say(key, Left, samples=self.samples, joined=order.generation)
                self.end(key, **(leaving or {"exit_code": 0}))

    def fail_to_meet(self, job_id: str) -> int:
        """Let members of an order with newcomers, who have it, say that they cannot meet; how many of them say so."""
        said = 0
        for key, one in self.processes.items():
            order = self.orders.get((one.node, job_id)) if key[0] == job_id else None
            if order is None or order.lost or one.apart >= order.generation:
                continue
            born = [(job_id, member.born_generation, member.born_rank) for member in order.members]
            old = [who for who in born if who[1] < order.generation]
            trains = one.role is not None and one.role[0] >= order.generation
            if (
                key in born
                and 0 < len(old) < len(born)
                and not trains
                and (one.role is not None or one.ready)
            ):
                one.apart = order.generation
                role = one.role or (key[1], key[2])
                self.say(
                    key, CannotMeet, role=role, meeting=order.generation, why="a cannot reach b:1: no answer"
                )
                said += 1
        return said

    def say(self, key: Key, kind: type[Message], role: tuple[int, int] | None = None, **said: object) -> None:
        """Let a process say something in its role."""
        process = self.processes[key]
        generation, rank = role or process.role or (key[1], key[2])
        message = kind(rank=rank, generation=generation, at_s=BEGIN.timestamp(), **said)  # type: ignore[arg-type]
        self._report(process.node, Said(key[0], (key[1], key[2]), message))

    # Waits of tests

    def settle(self) -> None:
        """Deliver everything, and let ranks get ready and switch, until nothing moves any more."""
        for _ in range(100):
            if not self._step():
                return
        raise AssertionError("the cluster never comes to rest")

    def _step(self) -> bool:
        moved = False
        for node, agent in self.agents.items():
            while agent.inbox or agent.outbox:
                moved = True
                if agent.inbox:
                    self.take_command(node)
                else:
                    self.take_report(node)
        for key in [key for key, one in self.processes.items() if one.role is None and not one.ready]:
            self.get_ready(key)
            moved = True
        for job_id in self.tables.jobs:
            self.switch(job_id)
        return moved or any(agent.outbox for agent in self.agents.values())


def _gone_on(before: Life, after: Life) -> Life:
    return go_on(after, Aftermath()) if has_just_gone(before, after) else after


def _entry(job_id: str, generation: int) -> dict[str, object]:
    return {"sequence": 0, "job_id": job_id, "generation": generation, "at": BEGIN}


def _rank_exit(report: RankExited) -> RankExit:
    return RankExit(
        rank=report.rank,
        exit_code=report.exit_code,
        signal=report.signal,
        stopped_by_agent=report.stopped_by_agent,
        completed=report.completed,
    )
