"""Assignment of chosen slot counts to slots: few moves, and the order in which jobs wait for one another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice
from operator import itemgetter
from typing import Final

from service.domain.allocation.configurations.shapes import pieces_of
from service.domain.allocation.placement.deadlock import deadlocked
from service.domain.allocation.placement.packing import lay_out
from service.domain.allocation.placement.repack import SlotDemand
from service.domain.jobs.job import Allocation, size_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSlots:
    """Free slots of a pool on nodes that take jobs, and `node_slots` of its shapes.

    `paths` are the topology labels of all nodes, smallest level first; empty if no node has any.
    """

    free: Allocation
    node_slots: int
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    slow: Collection[str] = ()
    """Nodes whose link is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """The chosen and the held slots of a job that may be moved, in one pool.

    A job that has slots in several pools has a request for each.

    Attributes:
        job_id: the job.
        kind: the pool that was chosen.
        slots: number of chosen slots; 0 if the job is to leave what it holds.
        unit: unit of the chosen shape; 1 for a job that is exempt from the packing rows.
        held_kind: the pool of the held slots; empty if the job holds none.
        held: slots that it may keep or leave to other jobs.
        private: slots that it may keep and that no other job may get, because their nodes take no jobs.
        gathers: True if it may leave what it holds although it keeps its size, to cross fewer topology levels.
    """

    job_id: str
    kind: str = ""
    slots: int = 0
    unit: int = 1
    held_kind: str = ""
    held: Allocation = field(default_factory=dict)
    private: Allocation = field(default_factory=dict)
    gathers: bool = False


class PlacementStep(StrEnum):
    """Next step of a job towards its placement."""

    STAY = "stay"
    GO = "go"
    """All of its slots are its own or free."""
    WAIT = "wait"
    """Other jobs must first leave some of its slots; until then it stays as it is."""
    YIELD = "yield"
    """The job is in a deadlock: it releases its slots now, and starts again when its next ones are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Target slots of a job. `allocation` is empty only if more was chosen than the rows admit.

    `waits_for` are the jobs that still hold some of its slots. `makes_room_for` is set for a job that moves
    but keeps kind and size: it names the job that takes most of the released slots. `parted` names two nodes that
    cannot talk, if that is why the job gets fewer slots than were chosen, or none.
    """

    allocation: Allocation
    step: PlacementStep
    waits_for: tuple[str, ...] = ()
    makes_room_for: str = ""
    parted: str = ""


def place_all(wants: Sequence[PlacementRequest], pools: Mapping[str, PoolSlots]) -> dict[str, Placement]:
    """Return a placement for every job that is to have slots, by job id; earlier `wants` have precedence.

    Every choice that keeps the rows of `shapes` and the slots of each kind is placed. Jobs that keep kind and
    size stay where they are unless other jobs would not fit. Held slots are granted to no other job before
    they are released.
    """
    parts: dict[str, tuple[PlacementRequest, ...]] = {}
    coming: dict[str, list[PlacementRequest]] = {}
    holding: dict[str, list[PlacementRequest]] = {}
    for want in wants:
        parts[want.job_id] = (*parts.get(want.job_id, ()), want)
        if want.slots > 0:
            coming.setdefault(want.kind, []).append(want)
        holding.setdefault(want.held_kind, []).append(want)
    moves: dict[str, _Move] = {}
    for kind, pool in sorted(pools.items()):
        for job, move in _place_kind(kind, pool, coming.get(kind, []), holding.get(kind, [])).items():
            moves[job] = moves[job].with_part(move) if job in moves else move
    waits = {job: move.taken_from for job, move in moves.items() if move.taken_from}
    yielding = deadlocked(waits, list(parts))
    displaced = {
        job for job, move in moves.items() if move.displaced and all(could_stay(want) for want in parts[job])
    }
    heirs = _heirs(moves, displaced)
    placements: dict[str, Placement] = {}
    for job, own in parts.items():
        chosen = sum([want.slots for want in own])
        if chosen > 0:
            move = moves.get(job, _NO_MOVE)
            allocation = {node: tuple(sorted(move.allocation[node])) for node in sorted(move.allocation)}
            if size_of(allocation) != chosen:
                allocation = {}
            placements[job] = Placement(
                allocation=allocation,
                step=_step(own, move, allocation, yields=job in yielding),
                waits_for=tuple(sorted(move.taken_from)),
                makes_room_for=heirs.get(job, ""),
            )
    return placements


def _heirs(moves: Mapping[str, _Move], displaced: Collection[str]) -> dict[str, str]:
    """Return, by displaced job, the job that takes most of its released slots, if there is one."""
    taken: dict[str, dict[str, int]] = {}
    for job, move in moves.items():
        for holder, slots in move.taken_from.items():
            if holder in displaced:
                taken.setdefault(holder, {})[job] = slots
    return {holder: max(jobs, key=jobs.__getitem__) for holder, jobs in taken.items()}


def could_stay(want: PlacementRequest) -> bool:
    """Return True if exactly what the job holds was chosen for it."""
    same_pool = want.held_kind == want.kind or not want.slots
    return same_pool and want.slots == size_of(want.held) + size_of(want.private)


def describe_move(
    old: Allocation, new: Allocation, *, heir: str, node_names: Mapping[str, str], aim: str = ""
) -> str:
    """Return one sentence about a job that keeps its size but not its slots.

    `heir` is the name of the job that takes the released slots, or empty. `aim` says what the
    job gains by its place, if anything.
    """
    left = ", ".join(node_names.get(node, node) for node in old if old[node] != new.get(node))
    entered = ", ".join(node_names.get(node, node) for node in new if new[node] != old.get(node))
    why = f" to make room for {heir}, which needs the slots together" if heir else " so that all jobs fit"
    why = f" {aim}" if aim and not heir else why
    return f"moves from {left} to {entered}{why}"


@dataclass(slots=True)
class _Move:
    """A job's slots by node. `taken_from` maps jobs to the number of these slots that they still hold.
    `displaced` is True if the job could have stayed.
    """

    allocation: dict[str, list[int]]
    displaced: bool
    taken_from: dict[str, int] = field(default_factory=dict)

    def with_part(self, other: _Move) -> _Move:
        """Return the move with the slots in another pool added."""
        nodes = (*self.allocation, *other.allocation)
        return _Move(
            {node: [*self.allocation.get(node, ()), *other.allocation.get(node, ())] for node in nodes},
            self.displaced or other.displaced,
            {
                **self.taken_from,
                **{job: self.taken_from.get(job, 0) + n for job, n in other.taken_from.items()},
            },
        )


_NO_MOVE: Final = _Move({}, displaced=False)
"""Empty move, for a job whose pool does not exist."""


def _place_kind(
    kind: str, pool: PoolSlots, here: Sequence[PlacementRequest], holders: Sequence[PlacementRequest]
) -> dict[str, _Move]:
    """Return the slots on one kind of the jobs to be placed there (`here`); `holders` hold some of them now."""
    shrinking = [want for want in holders if want.kind != kind or want.slots < size_of(want.held)]
    late = {node for want in shrinking for node in want.held}
    paths = pool.paths
    # Among equal nodes the first is taken, which is a node whose slots are free now; of these, neighbours follow each other.
    names = sorted(
        {*pool.free, *(node for want in holders for node in want.held)},
        key=lambda name: (name in late, paths.get(name, ())[::-1], name),
    )
    number = {name: at for at, name in enumerate(names)}
    room = [len(pool.free.get(name, ())) for name in names]
    for want in holders:
        for node, slots in want.held.items():
            room[number[node]] += len(slots)
    slow = {number[node] for node in pool.slow if node in number}
    claims = [_claim(want, number, pool.node_slots, slow) for want in here]
    lay_out(claims, room, pool.node_slots, [paths.get(name, ()) for name in names] if paths else ())
    moves = {}
    laid: dict[str, dict[str, int]] = {}
    for want, claim in zip(here, claims, strict=True):
        private = _first(want.private, want.slots) if want.held_kind == kind else {}
        moves[want.job_id] = _Move(private, claim.stays and claim.laid != claim.own)
        laid[want.job_id] = {names[at]: count for at, count in claim.laid.items()}
    left = _keep(holders, laid, moves)
    _give(pool.free, left, laid, moves)
    return moves


def _claim(
    want: PlacementRequest, number: Mapping[str, int], node_slots: int, slow: Collection[int]
) -> SlotDemand:
    """Return the demand of a job with nodes as numbers. It excludes private slots, which concern no other job."""
    here = want.held_kind == want.kind
    own = {number[node]: len(slots) for node, slots in want.held.items() if slots} if here else {}
    slots = max(0, want.slots - size_of(want.private)) if here else want.slots
    stays = slots > 0 and slots == sum(own.values()) and not want.gathers
    unit = min(max(want.unit, 1), 1 << (node_slots.bit_length() - 1))
    return SlotDemand(slots=slots, pieces=pieces_of(slots, node_slots, unit), own=own, stays=stays, slow=slow)


def _first(allocation: Allocation, count: int) -> dict[str, list[int]]:
    first: dict[str, list[int]] = {}
    for node in sorted(allocation):
        if count > 0 and allocation[node]:
            first[node] = list(allocation[node][:count])
            count -= len(first[node])
    return first


def _keep(
    holders: Iterable[PlacementRequest], laid: Mapping[str, dict[str, int]], moves: Mapping[str, _Move]
) -> dict[str, list[tuple[int, str]]]:
    """Give jobs their own slots on the nodes where they remain, and subtract them from `laid`.

    Return the slots that they leave: node -> slots with the jobs that hold them.
    """
    left: dict[str, list[tuple[int, str]]] = {}
    for want in holders:
        counts = laid.get(want.job_id, {})
        for node, slots in want.held.items():
            kept = min(counts.get(node, 0), len(slots))
            if kept:
                counts[node] -= kept
                moves[want.job_id].allocation.setdefault(node, []).extend(slots[:kept])
            if kept < len(slots):
                left.setdefault(node, []).extend((slot, want.job_id) for slot in slots[kept:])
    return left


def _give(
    free: Allocation,
    left: Mapping[str, list[tuple[int, str]]],
    laid: Mapping[str, Mapping[str, int]],
    moves: Mapping[str, _Move],
) -> None:
    """Assign the slots that no job keeps: on each node the free ones to the smallest needs, so that most jobs
    can start.
    """
    needs: dict[str, list[tuple[int, str]]] = {}
    for job, counts in laid.items():
        for node, count in counts.items():
            if count:
                needs.setdefault(node, []).append((count, job))
    for node, newcomers in needs.items():
        supply = chain(((slot, "") for slot in free.get(node, ())), left.get(node, ()))
        for count, job in sorted(newcomers, key=itemgetter(0)):
            for slot, holder in islice(supply, count):
                moves[job].allocation.setdefault(node, []).append(slot)
                if holder:
                    taken = moves[job].taken_from
                    taken[holder] = taken.get(holder, 0) + 1


def _step(
    own: Sequence[PlacementRequest], move: _Move, allocation: Allocation, *, yields: bool
) -> PlacementStep:
    if move.taken_from or not allocation:
        return PlacementStep.YIELD if yields else PlacementStep.WAIT
    if not all(could_stay(want) for want in own):
        return PlacementStep.GO
    held = {
        (node, slot)
        for want in own
        for part in (want.held, want.private)
        for node in part
        for slot in part[node]
    }
    target = {(node, slot) for node, slots in allocation.items() for slot in slots}
    return PlacementStep.STAY if target <= held else PlacementStep.GO
