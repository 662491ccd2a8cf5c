"""A job together with everything that decides what happens to it next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from headway.contract.agents import Member
from headway.contract.values.topology import crossed_level
from headway.contract.views.jobs import Reason
from service.domain.cluster.spot_rate import FAILURES_PER_H, TOGETHER
from service.domain.jobs.failures import RankExit
from service.domain.jobs.job import Allocation, Job, minus
from service.domain.jobs.lifecycle import JobEvent, advance
from service.domain.jobs.membership import Born, Crew
from service.domain.jobs.records import AllocationRecord, event_about
from service.domain.life.effects import (
    AddAllocation,
    CallRound,
    Effect,
    EndAllocation,
    Held,
    RecordEvent,
    ReleaseSlots,
    StoreExit,
    StoreMembers,
)


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings of this deployment that ranks need."""

    checkpoint_root: str
    """The URI under which every job has a folder for its checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The facts about a node that the life of a job depends on."""

    id: str
    name: str
    address: str
    first_port: int
    last_port: int
    device_kinds: Mapping[int, str]
    """Device kind by slot index."""
    lost: bool = False
    reclaimed: bool = False
    """True if the provider has announced that it takes the machine away."""
    losses_per_h: float = FAILURES_PER_H
    """Expected losses of the machine per hour: its failures, and interruptions by its provider."""
    together: float = TOGETHER
    """Share of the interruptions that take all machines of its zone."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Topology labels by level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The resources of a job on the cluster: slots, stores, ended processes, and nodes."""

    held: Held = field(default_factory=dict)
    stores: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Ports of the stores that nodes keep for the job, by node id and generation of the start."""
    exits: Mapping[Born, RankExit] = field(default_factory=dict)
    """Ends of processes, at least of all that are members now."""
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    """Nodes that the job holds slots of, or shall hold slots of, by id."""
    ports_in_use: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Ports that stores of any job use, by node id. Only starts need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A job at one moment, and the effects that were decided since it was loaded.

    The job's row is locked meanwhile, so nothing else changes it. Every method returns the life after one
    step. Later steps see the results of earlier ones, although none is carried out yet.
    """

    job: Job
    now: datetime
    launch: Launch
    generations: Mapping[int, AllocationRecord]
    """Allocations of the running generation and of the one that a switch leads to, as far as there are any."""
    footprint: Footprint | None
    """None if it was not loaded, because what happened does not need it."""
    effects: tuple[Effect, ...] = ()

    @property
    def loaded_footprint(self) -> Footprint:
        """The job's footprint, which must have been loaded."""
        assert self.footprint is not None, f"the footprint of {self.job.id} was not loaded"
        return self.footprint

    @property
    def running(self) -> AllocationRecord | None:
        """The allocation that the job trains on, or trained on last."""
        return self.generations.get(self.job.generation)

    @property
    def crew(self) -> Crew:
        """The processes that may report for the job now."""
        return crew_of(self.job, self.generations)

    def kind_of(self, member: Member) -> str:
        """Return the device kind of a member's slot; its previous one if the node reports the slot no more."""
        kinds = self.loaded_footprint.hosts[member.node_id].device_kinds
        return kinds.get(member.slot, member.device_kind)

    @property
    def is_gone(self) -> bool:
        """True if no process of the job is left anywhere. Slots of a coming generation may be held."""
        return all(generation > self.job.newest_generation for generation in self.loaded_footprint.held)

    def with_job(self, job: Job) -> Life:
        """Return the life with another value of the job's row."""
        return replace(self, job=job)

    def having(self, *effects: Effect) -> Life:
        """Return the life with more effects."""
        return replace(self, effects=(*self.effects, *effects))

    def settled(self) -> Life:
        """Return the life after its effects were carried out."""
        return replace(self, effects=())

    def advanced(
        self, event: JobEvent, *, reason: Reason, message: str, data: Mapping[str, Any] | None = None
    ) -> Life:
        """Return the life after an event that changes the job's state.

        Raises:
            IllegalTransition: the lifecycle has no such edge.
        """
        moved = self.with_job(advance(self.job, event, reason=reason, message=message, now=self.now))
        return moved.noted(str(event), reason=reason, message=message, data=data).having(CallRound())

    def noted(
        self,
        kind: str,
        *,
        message: str,
        reason: Reason | None = None,
        data: Mapping[str, Any] | None = None,
        at: datetime | None = None,
    ) -> Life:
        """Return the life with an event in the job's history that leaves its state as it is."""
        event = event_about(self.job, kind, message=message, at=at or self.now, reason=reason, data=data)
        return self.having(RecordEvent(self.job, event))

    def with_allocation(self, record: AllocationRecord) -> Life:
        """Return the life with the allocation of another generation, whose slots are granted already."""
        hosts = self.loaded_footprint.hosts
        record = replace(record, crossed=crossed_level(hosts[node].labels for node in record.slots))
        stores = {(node, record.generation): port for node, port in record.stores.items()}
        footprint = replace(self.loaded_footprint, stores={**self.loaded_footprint.stores, **stores})
        generations = {**self.generations, record.generation: record}
        return replace(self, generations=generations, footprint=footprint).having(AddAllocation(record))

    def with_pids(self, node_id: str, generation: int, pids: Mapping[int, int]) -> Life:
        """Return the life with the process ids, by rank, of the processes that a node started for a generation.

        Survivors take their process ids along, so every generation that they are members of gets them.
        """
        life = self
        for number, record in self.generations.items():
            members = tuple(
                one.model_copy(update={"pid": pids[one.born_rank]})
                if (one.node_id, one.born_generation) == (node_id, generation) and one.born_rank in pids
                else one
                for one in record.members
            )
            if members != record.members:
                generations = {**life.generations, number: replace(record, members=members)}
                life = replace(life, generations=generations).having(StoreMembers(number, members))
        return life

    def without_allocation(self, generation: int) -> Life:
        """Return the life after the end of a generation's training."""
        return self.having(EndAllocation(generation))

    def with_exit(self, generation: int, exit_: RankExit) -> Life:
        """Return the life after the end of a process. Only the first report about a process counts."""
        who = (generation, exit_.rank)
        if who in self.loaded_footprint.exits:
            return self
        footprint = replace(self.loaded_footprint, exits={**self.loaded_footprint.exits, who: exit_})
        return replace(self, footprint=footprint).having(StoreExit(generation, exit_))

    def with_grant(self, slots: Allocation) -> Life:
        """Return the life after free slots were granted to the job's next generation."""
        coming = self.job.newest_generation + 1
        held = {
            **self.loaded_footprint.held,
            coming: _plus(self.loaded_footprint.held.get(coming, {}), slots),
        }
        footprint = replace(
            self.loaded_footprint, held={number: nodes for number, nodes in held.items() if nodes}
        )
        return replace(self, footprint=footprint)

    def releasable(
        self, generation: int, node_id: str | None = None, slots: Collection[int] | None = None
    ) -> Allocation:
        """Return the slots that `released` would free."""
        held = self.loaded_footprint.held.get(generation, {})
        chosen = {
            node: tuple(slot for slot in here if slots is None or slot in slots)
            for node, here in held.items()
            if node_id is None or node == node_id
        }
        return {node: here for node, here in chosen.items() if here}

    def released(
        self,
        generation: int,
        node_id: str | None = None,
        *,
        slots: Collection[int] | None = None,
        carry_over: Allocation | None = None,
    ) -> Life:
        """Return the life after slots granted to a generation were freed, or passed on to the next start."""
        freed = self.releasable(generation, node_id, slots)
        if not freed:
            return self
        coming = self.job.newest_generation + 1
        carried = carry_over or {}
        kept = {
            node: tuple(slot for slot in here if slot in carried.get(node, ()))
            for node, here in freed.items()
        }
        held = {
            **self.loaded_footprint.held,
            generation: minus(self.loaded_footprint.held[generation], freed),
        }
        held[coming] = _plus(held.get(coming, {}), kept)
        held = {number: nodes for number, nodes in held.items() if nodes}
        stores = {key: port for key, port in self.loaded_footprint.stores.items() if key[1] in held}
        effect = ReleaseSlots(
            generation=generation, node_id=node_id, slots=slots, carry_over=carried, next_generation=coming
        )
        footprint = replace(self.loaded_footprint, held=held, stores=stores)
        return replace(self, footprint=footprint).having(effect)


def crew_of(job: Job, generations: Mapping[int, AllocationRecord]) -> Crew:
    """Return the processes that may report for the job now: its running members and those of its next
    generation.
    """
    switch = job.switch
    running = generations.get(job.generation)
    coming = None if switch is None else generations.get(switch.generation)
    return Crew(
        generation=job.generation,
        running=running.members if running is not None else (),
        next_generation=switch.generation if switch is not None else None,
        coming=coming.members if coming is not None else (),
        ordered=switch is not None and switch.ordered,
    )


def _plus(slots: Allocation, more: Allocation) -> Allocation:
    both = {node: (*slots.get(node, ()), *more.get(node, ())) for node in (*slots, *more)}
    return {node: tuple(sorted(here)) for node, here in both.items() if here}
