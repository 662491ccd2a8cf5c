"""Tables in memory: jobs with their slots, allocations, exits and events, changed only by effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from headway.contract.agents import AnyCommand, OrderCommand
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Allocation, Job
from service.domain.jobs.membership import Born, born
from service.domain.jobs.records import AllocationRecord, Event
from service.domain.life.effects import (
    AddAllocation,
    CallRound,
    CountPreemption,
    Effect,
    EndAllocation,
    Held,
    RecordEvent,
    RefreshPages,
    ReleaseSlots,
    SendCommands,
    StoreExit,
    StoreMembers,
)
from service.domain.life.life import Footprint, HostFacts, Launch, Life

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PORTS = 100
"""Ports for stores on each host."""


def host(node_id: str, slots: int = 2) -> HostFacts:
    """A node whose slots are CPUs."""
    return HostFacts(
        id=node_id,
        name=f"node-{node_id}",
        address=f"{node_id}.example",
        first_port=20_000,
        last_port=20_000 + PORTS - 1,
        device_kinds=dict.fromkeys(range(slots), "cpu"),
    )


@dataclass
class Tables:
    """Rows of the database. Each changes by an effect, and each effect checks its row."""

    hosts: dict[str, HostFacts]
    now: datetime = BEGIN
    jobs: dict[str, Job] = field(default_factory=dict)
    grants: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """Job and generation by node and slot."""
    allocations: dict[tuple[str, int], AllocationRecord] = field(default_factory=dict)
    ended: set[tuple[str, int]] = field(default_factory=set)
    exits: dict[str, dict[Born, RankExit]] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    sent: list[tuple[str, AnyCommand]] = field(default_factory=list)
    """Commands in the order in which they were sent, with their nodes."""
    preemptions: int = 0

    def submit(self, name: str, **fields: object) -> Job:
        """Store a new job that waits for its first round."""
        spec = JobSpec.model_validate({"name": name, "run": "python train.py", **fields})
        job = Job(
            id=name,
            spec=spec,
            state=JobState.PENDING,
            reason=Reason.SUBMITTED,
            message="waits for the next round",
            submitted_at=self.now,
            state_since=self.now,
        )
        self.jobs[name] = job
        self.exits[name], self.events[name] = {}, []
        return job

    def held(self, job_id: str) -> Held:
        """The slots of a job by generation, as the database would return them."""
        held: dict[int, dict[str, tuple[int, ...]]] = {}
        for (node, slot), (holder, generation) in sorted(self.grants.items()):
            if holder == job_id:
                nodes = held.setdefault(generation, {})
                nodes[node] = (*nodes.get(node, ()), slot)
        return held

    def stores(self, job_id: str) -> dict[tuple[str, int], int]:
        """The stores of a job whose starts still hold slots."""
        records = [self.allocations.get((job_id, generation)) for generation in self.held(job_id)]
        return {
            (node, record.generation): port
            for record in records
            if record is not None
            for node, port in record.stores.items()
        }

    def life(self, job_id: str) -> Life:
        """The life of a job as it would be loaded now."""
        job = self.jobs[job_id]
        numbers = {job.generation, *([] if job.switch is None else [job.switch.generation])}
        return Life(
            job=job,
            now=self.now,
            launch=Launch("file:///checkpoints"),
            generations={
                number: self.allocations[job_id, number]
                for number in numbers
                if (job_id, number) in self.allocations
            },
            footprint=Footprint(
                held=self.held(job_id),
                stores=self.stores(job_id),
                exits=dict(self.exits[job_id]),
                hosts=dict(self.hosts),
                ports_in_use=self.ports_in_use(),
            ),
        )

    def ports_in_use(self) -> dict[str, set[int]]:
        """The ports of the stores of all jobs whose starts still hold slots, by node."""
        used: dict[str, set[int]] = {}
        for job_id in self.jobs:
            for (node, _), port in self.stores(job_id).items():
                used.setdefault(node, set()).add(port)
        return used

    def grant(self, job_id: str, slots: Allocation) -> None:
        """Grant free slots to the next generation of a job."""
        generation = self.jobs[job_id].newest_generation + 1
        for node, indices in slots.items():
            for slot in indices:
                assert (node, slot) not in self.grants, f"{node}/{slot} is held twice"
                self.grants[node, slot] = (job_id, generation)

    def store(self, life: Life) -> list[Effect]:
        """Carry out the effects of a life, and check that the life foresaw what the tables hold then."""
        self.jobs[life.job.id] = life.job
        for effect in life.effects:
            self._carry_out(life.job.id, effect)
        assert life.loaded_footprint.held == self.held(life.job.id), "the life knows what it holds"
        assert life.loaded_footprint.exits == self.exits[life.job.id]
        return list(life.effects)

    def _carry_out(self, job_id: str, effect: Effect) -> None:
        match effect:
            case RecordEvent(_, event):
                assert event.message, "every event says something"
                self.events[job_id].append(event)
            case AddAllocation(record):
                known = [number for holder, number in self.allocations if holder == job_id]
                assert record.generation > max(known, default=0), "no generation number is used twice"
                mine = {key for key, (holder, _) in self.grants.items() if holder == job_id}
                slots = {(node, slot) for node, indices in record.slots.items() for slot in indices}
                assert slots <= mine, "a generation starts on slots that are granted to its job"
                gone = self.exits[job_id].keys() & {born(one) for one in record.members}
                assert not gone, f"{gone} have ended and cannot be members of a new generation"
                self.allocations[job_id, record.generation] = record
            case StoreMembers(generation, members):
                record = self.allocations[job_id, generation]
                self.allocations[job_id, generation] = replace(record, members=members)
            case EndAllocation(generation):
                self.ended.add((job_id, generation))
            case StoreExit(generation, exit_):
                self.exits[job_id].setdefault((generation, exit_.rank), exit_)
            case ReleaseSlots():
                self._release(job_id, effect)
            case SendCommands(commands):
                for _, command in commands:
                    self._check(command)
                self.sent.extend(commands)
            case CountPreemption():
                self.preemptions += 1
            case CallRound() | RefreshPages():
                pass

    def _check(self, command: AnyCommand) -> None:
        """A command concerns numbers that exist, and an order only processes that may still run."""
        assert command.generation <= self.jobs[command.job_id].newest_generation
        if isinstance(command, OrderCommand):
            ended = {who for who, exit_ in self.exits[command.job_id].items() if not exit_.completed}
            assert ended.isdisjoint(born(one) for one in command.members), "an order to a process that ended"

    def _release(self, job_id: str, effect: ReleaseSlots) -> None:
        freed = [
            key
            for key, holder in self.grants.items()
            if holder == (job_id, effect.generation)
            and effect.node_id in {None, key[0]}
            and (effect.slots is None or key[1] in effect.slots)
        ]
        assert freed, "a release frees something"
        for node, slot in freed:
            del self.grants[node, slot]
            if slot in effect.carry_over.get(node, ()):
                self.grants[node, slot] = (job_id, effect.next_generation)

    def free_slots(self) -> list[tuple[str, int]]:
        """The slots of nodes that are not lost, and that nobody holds."""
        return [
            (node.id, slot)
            for node in self.hosts.values()
            if not node.lost
            for slot in node.device_kinds
            if (node.id, slot) not in self.grants
        ]

    def unended(self, job_id: str) -> set[int]:
        """The generations of a job that have not ended."""
        return {number for holder, number in self.allocations.keys() - self.ended if holder == job_id}

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def mark(self, node_id: str, *, lost: bool) -> None:
        """Lose a node, or take it back."""
        self.hosts[node_id] = replace(self.hosts[node_id], lost=lost)


def allocation_of(slots: Sequence[tuple[str, int]]) -> Allocation:
    """Slots, given one by one, as an allocation."""
    nodes: dict[str, tuple[int, ...]] = {}
    for node, slot in sorted(slots):
        nodes[node] = (*nodes.get(node, ()), slot)
    return nodes
