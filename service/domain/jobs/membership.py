"""Members of a generation: their succession from the previous generation, and their rendezvous store.

A process keeps the identity of its start, (born generation, born rank), for life; its rank changes with the
generation. The processes of one start are a *cohort*; slots are granted to cohorts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from headway.contract.agents import Member, RankSlot
from headway.contract.values.meshes import MeshShape
from headway.contract.views.ranks import RankPart
from service.domain.jobs.failures import Ending, RankExit, ending_of
from service.domain.jobs.job import Allocation
from service.domain.jobs.ranks import NodeRanks
from service.domain.jobs.shard_order import new_ranks

Born: TypeAlias = tuple[int, int]
"""Permanent identity of a process: the generation and the rank that it was started with."""

Members: TypeAlias = tuple[Member, ...]
"""Members of one generation in the order of their ranks, which count from zero without gaps."""


def born(member: Member) -> Born:
    """Return the permanent identity of a member."""
    return member.born_generation, member.born_rank


def first_members(parts: Iterable[NodeRanks], generation: int) -> Members:
    """Return the members of a generation that starts from scratch."""
    return tuple(
        Member(
            rank=one.rank, node_id=part.node_id, slot=one.slot, born_generation=generation, born_rank=one.rank
        )
        for part in parts
        for one in part.ranks
    )


def next_members(
    members: Members,
    slots: Allocation,
    generation: int,
    *,
    meshes: tuple[MeshShape, MeshShape] | None = None,
) -> Members:
    """Return the members of `generation` on `slots`: survivors first in their order, then new ranks.

    New ranks are numbered node by node: nodes with survivors first, then by size of their share. In a sharded job, which
    changes between two `meshes`, survivors have the numbers at which they keep most of their parts of the model.
    """
    stay = [one for one in members if one.slot in slots.get(one.node_id, ())]
    taken = {(one.node_id, one.slot) for one in stay}
    homes = {one.node_id for one in stay}
    nodes = sorted(slots, key=lambda node: (node not in homes, -len(slots[node]), node))
    added = [(node, slot) for node in nodes for slot in sorted(slots[node]) if (node, slot) not in taken]
    size = len(stay) + len(added)
    kept = new_ranks([one.rank for one in stay], *meshes) if meshes else list(range(len(stay)))
    free = [rank for rank in range(size) if rank not in set(kept)]
    newcomers = [
        Member(rank=rank, node_id=node, slot=slot, born_generation=generation, born_rank=rank)
        for rank, (node, slot) in zip(free, added, strict=True)
    ]
    survivors = [one.model_copy(update={"rank": rank}) for rank, one in zip(kept, stay, strict=True)]
    return tuple(sorted([*survivors, *newcomers], key=lambda one: one.rank))


def without(members: Members, ended: Collection[Born]) -> Members:
    """Return the members that remain after some have ended, in their order."""
    return _renumbered(one for one in members if born(one) not in ended)


def ranks_left(members: Members, survivors: Members) -> set[int]:
    """Return the ranks of the members that are among the survivors, under whatever rank."""
    stay = {born(one) for one in survivors}
    return {one.rank for one in members if born(one) in stay}


def _renumbered(members: Iterable[Member]) -> Members:
    return tuple(one.model_copy(update={"rank": rank}) for rank, one in enumerate(members))


def slots_of(members: Members) -> Allocation:
    """Return the slots that the members run on."""
    slots: dict[str, list[int]] = {}
    for one in members:
        slots.setdefault(one.node_id, []).append(one.slot)
    return {node: tuple(sorted(slots[node])) for node in sorted(slots)}


def nodes_of(members: Members) -> tuple[str, ...]:
    """Return the nodes of the members, ordered by the lowest rank on each."""
    return tuple(dict.fromkeys(one.node_id for one in members))


def newcomer_ranks(members: Members, generation: int) -> tuple[NodeRanks, ...]:
    """Return the ranks that each node must start for `generation`. Local ranks count within the start."""
    parts = []
    for node_rank, node in enumerate(nodes_of(members)):
        here = [one for one in members if one.node_id == node and one.born_generation == generation]
        ranks = tuple(
            RankSlot(rank=one.rank, local_rank=local, slot=one.slot) for local, one in enumerate(here)
        )
        if ranks:
            parts.append(NodeRanks(node, node_rank, ranks))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Store:
    """Rendezvous store that `node_id` keeps for the cohort of `generation`."""

    node_id: str
    generation: int
    port: int


def choose_store(members: Members, ports: Mapping[tuple[str, int], int]) -> Store | None:
    """Return the store of the first member whose cohort has one on its node; None if there is none.

    `ports` maps (node id, generation of the start) to a port. A store lives as long as its cohort has a
    process on the node. The store of a member therefore outlives the member's use of it.
    """
    for one in members:
        port = ports.get((one.node_id, one.born_generation))
        if port is not None:
            return Store(one.node_id, one.born_generation, port)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Processes that may report for a job: members of the running generation, and of the next one during a
    change.

    Until the change is ordered, only its new ranks may report for the next generation.
    """

    generation: int
    running: Members
    next_generation: int | None = None
    coming: Members = ()
    ordered: bool = False

    def member(self, who: Born) -> Member | None:
        """Return the process as a member of the running generation, otherwise of the next."""
        return next((one for one in (*self.running, *self.coming) if born(one) == who), None)

    def runs_on(self, who: Born, node_id: str) -> bool:
        """Return True if the process is a member on that node. No other process may report for that member."""
        member = self.member(who)
        return member is not None and member.node_id == node_id

    def may_report(self, who: Born, generation: int, rank: int) -> bool:
        """Return True if the process has this rank in this generation and may report for it now."""
        if generation == self.generation:
            return any(born(one) == who and one.rank == rank for one in self.running)
        if generation != self.next_generation:
            return False
        early = not self.ordered and who[0] != generation
        return not early and any(born(one) == who and one.rank == rank for one in self.coming)

    def is_newcomer(self, who: Born) -> bool:
        """Return True if the process was started for the next generation."""
        return who[0] == self.next_generation

    def is_leaver(self, who: Born) -> bool:
        """Return True if the process was ordered to leave: it runs now and is not a member of the next
        generation.
        """
        return self.ordered and all(born(one) != who for one in self.coming)

    def on_node(self, node_id: str) -> tuple[Born, ...]:
        """Return the processes on a node."""
        return tuple(
            dict.fromkeys(born(one) for one in (*self.running, *self.coming) if one.node_id == node_id)
        )

    def lasting(self) -> Members:
        """Return the members that continue: those of the ordered generation, otherwise of the running one."""
        return self.coming if self.ordered else self.running


def living(
    crew: Crew, held: Mapping[int, Allocation], ended: Collection[Born]
) -> tuple[tuple[Member, RankPart], ...]:
    """Return the processes that have not ended, with their part: running members, then new ranks.

    `held` are the slots that the job holds, by the generation of the start. A member without a slot has no process.
    """
    newcomers = [one for one in crew.coming if crew.is_newcomer(born(one))]
    found = []
    for one in (*crew.running, *newcomers):
        here = held.get(one.born_generation, {}).get(one.node_id, ())
        if one.slot in here and born(one) not in ended:
            leaves = RankPart.LEAVES if crew.is_leaver(born(one)) else RankPart.TRAINS
            found.append((one, RankPart.JOINS if crew.is_newcomer(born(one)) else leaves))
    return tuple(found)


def has_finished(crew: Crew, exits: Mapping[Born, RankExit]) -> bool:
    """Return True if training is over: every running member, except those just ordered to leave, completed
    it.

    New ranks that wait for a membership change do not count, because the change will not happen any more.
    """
    if not crew.running:
        return False
    stay = [born(one) for one in crew.running if not crew.is_leaver(born(one))]
    if stay:
        return all(who in exits and ending_of(exits[who]) is Ending.DONE for who in stay)
    left = [born(one) for one in crew.running]
    return all(who in exits and exits[who].completed and ending_of(exits[who]) is Ending.DONE for who in left)


def exits_to_judge(crew: Crew, exits: Mapping[Born, RankExit]) -> Sequence[RankExit]:
    """Return the exits that determine the job's end, with the last rank of each process.

    A leaving member that exits with code 0 followed its order; its exit does not count as completion. New
    ranks count once they are members, unless the others finished without them.
    """
    members = {born(one): one.rank for one in crew.running}
    if has_finished(crew, exits):
        stay = {who: rank for who, rank in members.items() if not crew.is_leaver(who)}
        members = stay or members
    elif crew.ordered:
        members |= {born(one): one.rank for one in crew.coming}
    judged = [(who, rank) for who, rank in members.items() if who in exits]
    return [replace(exits[who], rank=rank) for who, rank in judged if not _only_left(crew, who, exits[who])]


def _only_left(crew: Crew, who: Born, exit_: RankExit) -> bool:
    return crew.is_leaver(who) and ending_of(exit_) is Ending.DONE and not exit_.completed
