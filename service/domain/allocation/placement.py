"""From counts to slots: who sits where, moving as little as possible, and who must wait for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice
from operator import itemgetter

from service.domain.allocation.deadlock import deadlocked
from service.domain.allocation.packing import lay_out
from service.domain.allocation.seating import Claim
from service.domain.allocation.shapes import pieces_of
from service.domain.jobs import Allocation, size_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The slots of a pool: those that nobody holds on nodes that take jobs, and `node_slots` of its shapes."""

    free: Allocation
    node_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What was chosen for a job that may be moved, and what it holds: all of it, or, of a job that has to do with several
    pools, the part of one.

    Attributes:
        job_id: the job.
        kind: the pool that was chosen.
        slots: how many; 0: it is to leave what it holds.
        unit: that of the chosen shape; 1 for a job that is exempt from the packing rows.
        held_kind: the pool of what it holds; empty if it holds nothing.
        held: slots that it may keep or leave to others.
        private: slots that it may keep and that nobody else may get, since their nodes take no jobs.
    """

    job_id: str
    kind: str = ""
    slots: int = 0
    unit: int = 1
    held_kind: str = ""
    held: Allocation = field(default_factory=dict)
    private: Allocation = field(default_factory=dict)


class Step(StrEnum):
    """What a job can do now towards its place."""

    STAY = "stay"
    GO = "go"
    """All of its slots are its own or free."""
    WAIT = "wait"
    """Others must leave some of its slots first; until then it stays as it is."""
    YIELD = "yield"
    """It and others wait for each other's slots: it gives up its own now, and starts again when its place is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job is to be. `allocation` is empty only where more was chosen than the rows let through.

    `waits_for` are the jobs that still hold some of its slots. `makes_room_for` is set where a job moves that keeps kind
    and size: it is the job that takes most of what the mover leaves.
    """

    allocation: Allocation
    step: Step
    waits_for: tuple[str, ...] = ()
    makes_room_for: str = ""


def place_all(wants: Sequence[Want], pools: Mapping[str, Pool]) -> dict[str, Placement]:
    """A place for every job that is to have slots, by job id; the earlier of `wants` come first where it matters.

    Whatever keeps to the rows of `shapes`, and to the slots of each kind, is placed. Jobs that keep kind and size stay
    where they are unless others would not find room. Slots that are held go to nobody before they are left.
    """
    parts: dict[str, list[Want]] = {}
    for want in wants:
        parts.setdefault(want.job_id, []).append(want)
    moves: dict[str, _Move] = {}
    for kind, pool in sorted(pools.items()):
        for job, move in _place_kind(kind, pool, wants).items():
            moves[job] = moves[job].with_part(move) if job in moves else move
    heirs: dict[str, Counter[str]] = {}
    for job, move in moves.items():
        for holder, slots in move.taken_from.items():
            heirs.setdefault(holder, Counter())[job] += slots
    waits = {job: set(move.taken_from) for job, move in moves.items() if move.taken_from}
    yielding = deadlocked(waits, list(parts))
    placements: dict[str, Placement] = {}
    for job, own in parts.items():
        chosen = sum(want.slots for want in own)
        if chosen > 0:
            move = moves.get(job, _Move({}, displaced=False))
            allocation = {node: tuple(sorted(move.allocation[node])) for node in sorted(move.allocation)}
            if size_of(allocation) != chosen:
                allocation = {}
            displaced = move.displaced and all(could_stay(want) for want in own)
            heir = heirs[job].most_common(1) if displaced and job in heirs else ()
            placements[job] = Placement(
                allocation=allocation,
                step=_step(own, move, allocation, yields=job in yielding),
                waits_for=tuple(sorted(move.taken_from)),
                makes_room_for=heir[0][0] if heir else "",
            )
    return placements


def could_stay(want: Want) -> bool:
    """Whether just what the job holds was chosen for it."""
    same_pool = want.held_kind == want.kind or not want.slots
    return same_pool and want.slots == size_of(want.held) + size_of(want.private)


def describe_move(old: Allocation, new: Allocation, *, heir: str, node_names: Mapping[str, str]) -> str:
    """One sentence about a job that keeps its size but not its slots; `heir` is the name of who takes them, or empty."""
    left = ", ".join(node_names.get(node, node) for node in old if old[node] != new.get(node))
    entered = ", ".join(node_names.get(node, node) for node in new if new[node] != old.get(node))
    why = (
        f" to make room for {heir}, which needs the slots together" if heir else " so that all jobs find room"
    )
    return f"moves from {left} to {entered}{why}"


@dataclass(slots=True)
class _Move:
    """A job's slots, by node, and whose some of them still are: job -> slots. `displaced`: it could have stayed."""

    allocation: dict[str, list[int]]
    displaced: bool
    taken_from: Counter[str] = field(default_factory=Counter)

    def with_part(self, other: _Move) -> _Move:
        """The same with what it gets in another pool."""
        return _Move(
            {**self.allocation, **other.allocation},
            self.displaced or other.displaced,
            self.taken_from + other.taken_from,
        )


def _place_kind(kind: str, pool: Pool, wants: Sequence[Want]) -> dict[str, _Move]:
    """The slots on one kind of the jobs that are to be there."""
    here = [want for want in wants if want.kind == kind and want.slots > 0]
    holders = [want for want in wants if want.held_kind == kind]
    shrinking = [want for want in holders if want.kind != kind or want.slots < size_of(want.held)]
    late = {node for want in shrinking for node in want.held}
    # Of equal nodes the first is taken: one whose slots are free now.
    names = sorted(
        {*pool.free, *(node for want in holders for node in want.held)}, key=lambda name: (name in late, name)
    )
    number = {name: at for at, name in enumerate(names)}
    room = [len(pool.free.get(name, ())) for name in names]
    for want in holders:
        for node, slots in want.held.items():
            room[number[node]] += len(slots)
    claims = [_claim(want, number, pool.node_slots) for want in here]
    lay_out(claims, room, pool.node_slots)
    moves = {}
    laid: dict[str, dict[str, int]] = {}
    for want, claim in zip(here, claims, strict=True):
        private = _first(want.private, want.slots) if want.held_kind == kind else {}
        moves[want.job_id] = _Move(private, claim.stays and claim.laid != claim.own)
        laid[want.job_id] = {names[at]: count for at, count in claim.laid.items()}
    left = _keep(holders, laid, moves)
    _give(pool.free, left, laid, moves)
    return moves


def _claim(want: Want, number: Mapping[str, int], node_slots: int) -> Claim:
    """The job by numbers. Private slots are no part of it: they concern nobody else."""
    here = want.held_kind == want.kind
    own = {number[node]: len(slots) for node, slots in want.held.items() if slots} if here else {}
    slots = max(0, want.slots - size_of(want.private)) if here else want.slots
    stays = slots > 0 and slots == sum(own.values())
    unit = min(max(want.unit, 1), 1 << (node_slots.bit_length() - 1))
    return Claim(slots=slots, pieces=pieces_of(slots, node_slots, unit), own=own, stays=stays)


def _first(allocation: Allocation, count: int) -> dict[str, list[int]]:
    first: dict[str, list[int]] = {}
    for node in sorted(allocation):
        if count > 0 and allocation[node]:
            first[node] = list(allocation[node][:count])
            count -= len(first[node])
    return first


def _keep(
    holders: Iterable[Want], laid: Mapping[str, dict[str, int]], moves: Mapping[str, _Move]
) -> dict[str, list[tuple[int, str]]]:
    """Give jobs their own slots on the nodes where they remain, and count these off `laid`.

    Returns what they leave: node -> slots and who holds them.
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
    """Give out the slots that nobody keeps: on each node the free ones to the smallest needs, so that most can go."""
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
                    moves[job].taken_from[holder] += 1


def _step(own: Sequence[Want], move: _Move, allocation: Allocation, *, yields: bool) -> Step:
    if move.taken_from or not allocation:
        return Step.YIELD if yields else Step.WAIT
    held = {
        (node, slot)
        for want in own
        for part in (want.held, want.private)
        for node in part
        for slot in part[node]
    }
    stays = all(could_stay(want) for want in own) and all(
        (node, slot) in held for node, slots in allocation.items() for slot in slots
    )
    return Step.STAY if stays else Step.GO
