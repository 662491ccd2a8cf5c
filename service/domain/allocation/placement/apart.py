"""Placements without nodes that cannot reach each other.

Nothing is computed while all nodes can talk. Otherwise the jobs whose placement spans such a pair get free slots
elsewhere, exchange slots with a job that starts too, take fewer slots, or wait, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from service.domain.allocation.inputs.round import Round
from service.domain.allocation.placement.placement import Placement, PlacementRequest, PlacementStep
from service.domain.cluster.apart import Apart
from service.domain.cluster.snapshot import SlotKey, allocation_of
from service.domain.jobs.job import Allocation, size_of
from service.domain.jobs.parallelism import lacks_memory

_FIRST_NODES = 64
"""Maximum number of nodes tried as the first of a placement."""
_PARTNERS = 32
"""Maximum number of jobs tried for an exchange of slots."""
_Room = dict[str, list[int]]


def keep_apart(
    round_: Round, wants: Sequence[PlacementRequest], placements: Mapping[str, Placement]
) -> Mapping[str, Placement]:
    """Return the placements without pairs of nodes that cannot talk, unless the job has ranks on both already."""
    if not round_.snapshot.apart:
        return placements
    return _Separation(round_, wants, placements).result()


class _Separation:
    """Placements that are being changed. `_spare` has the free slots that no placement takes, by pool and node."""

    def __init__(
        self, round_: Round, wants: Sequence[PlacementRequest], placements: Mapping[str, Placement]
    ) -> None:
        self._snapshot = round_.snapshot
        self._apart: Apart = round_.snapshot.apart
        self._concerned = {node for pair in self._apart.pairs for node in pair} | set(self._apart.alone)
        self._placements = dict(placements)
        self._units = {want.job_id: want.unit for want in wants if want.slots > 0}
        self._granted = {key: job for job, one in placements.items() for key in _keys(one.allocation)}
        """Job that is to get a slot."""
        self._free = set(round_.snapshot.free)
        self._spare: dict[str, _Room] = {}
        for key in round_.snapshot.free:
            if key not in self._granted:
                self._give_back(key)

    def result(self) -> dict[str, Placement]:
        """Return the placements by job."""
        for job_id in self._placements:
            why = self._conflict(job_id)
            if why:
                self._placements[job_id] = self._elsewhere(job_id, why)
        return self._placements

    def _conflict(self, job_id: str) -> str:
        allocation = self._placements[job_id].allocation
        if len(allocation) < 2 or self._concerned.isdisjoint(allocation):
            return ""
        return self._apart.within(allocation, self._held(job_id))

    def _held(self, job_id: str) -> Allocation:
        return allocation_of(self._snapshot.slots_held_by(job_id))

    def _elsewhere(self, job_id: str, why: str) -> Placement:
        """Return another placement of the job; an empty one if there is none."""
        placement = self._placements[job_id]
        held = self._held(job_id)
        held_keys = set(_keys(held))
        self._leave(placement.allocation)
        pools = {pool.name for key in _keys(placement.allocation) if (pool := self._snapshot.pool_of(key))}
        own = [key for key in held_keys if key not in self._granted and self._keeps(key)]
        if len(pools) != 1 or any(self._pool_name(key) not in pools for key in own):
            # Slots of two kinds: the job stays as it is.
            whole = bool(held) and len(own) == len(held_keys) and size_of(held) in self._sizes(job_id)
            return self._placed(job_id, held if whole else {}, why)
        (pool_name,) = pools
        chosen = size_of(placement.allocation)
        room = self._room(pool_name, own)
        for size in sorted({chosen, *(one for one in self._sizes(job_id) if one < chosen)}, reverse=True):
            found = self._fit(job_id, room, size, held)
            if found is None and size == chosen and not held:
                found = self._exchange(job_id, pool_name, room, size)
            if found is not None:
                return self._placed(job_id, found, why if size < chosen else "")
        return self._placed(job_id, {}, why)

    def _exchange(self, job_id: str, pool_name: str, room: _Room, size: int) -> Allocation | None:
        """Return slots for a starting job such that another starting job gets the ones left, both without a conflict."""
        partners = 0
        for other, placement in self._placements.items():
            if partners == _PARTNERS:
                return None
            starts = placement.step is PlacementStep.GO and placement.allocation
            if other == job_id or not starts or self._snapshot.slots_held_by(other):
                continue
            keys = list(_keys(placement.allocation))
            if any(self._pool_name(key) != pool_name for key in keys):
                continue
            partners += 1
            both = _merged(room, keys)
            mine = self._fit(job_id, both, size, {})
            if mine is None:
                continue
            theirs = self._fit(other, _without(both, mine), len(keys), placement.allocation)
            if theirs is None:
                continue
            self._leave(placement.allocation)
            self._take(other, theirs)
            self._placements[other] = replace(placement, allocation=theirs)
            return mine
        return None

    def _fit(
        self, job_id: str, room: Mapping[str, Sequence[int]], size: int, near: Allocation
    ) -> Allocation | None:
        """Return `size` slots on few nodes that can all talk, on the nodes in `near` if possible; None if there are none."""
        unit = self._units.get(job_id, 1)
        enough = [node for node, slots in room.items() if len(slots) >= size]
        if enough:
            node = min(enough, key=lambda one: (one not in near, len(room[one]), one))
            return {node: _first(room[node], size, near.get(node, ()))}
        nodes = sorted(
            (one for one in room if room[one]), key=lambda one: (one not in near, -len(room[one]), one)
        )
        for first in nodes[:_FIRST_NODES]:
            picked: dict[str, tuple[int, ...]] = {}
            missing = size
            for node in (first, *(one for one in nodes if one != first)):
                count = min(missing, len(room[node]) // unit * unit)
                if count and not any(
                    self._apart.between(node, one) and not (node in near and one in near) for one in picked
                ):
                    picked[node] = _first(room[node], count, near.get(node, ()))
                    missing -= count
                if not missing:
                    return {one: picked[one] for one in sorted(picked)}
        return None

    def _placed(self, job_id: str, allocation: Allocation, why: str) -> Placement:
        self._take(job_id, allocation)
        held = set(_keys(self._held(job_id)))
        step = PlacementStep.STAY if held and set(_keys(allocation)) == held else PlacementStep.GO
        if not allocation:
            step = PlacementStep.WAIT
        return Placement(allocation=allocation, step=step, parted=why)

    def _sizes(self, job_id: str) -> list[int]:
        job = self._snapshot.jobs[job_id]
        return [size for size in job.sizes if not lacks_memory(job, size)]

    def _keeps(self, key: SlotKey) -> bool:
        node = self._snapshot.nodes.get(key.node_id)
        return node is not None and node.keeps_jobs and key.slot in node.slots

    def _pool_name(self, key: SlotKey) -> str:
        pool = self._snapshot.pool_of(key)
        return "" if pool is None else pool.name

    def _room(self, pool_name: str, own: Iterable[SlotKey]) -> _Room:
        """Return the slots that a job may take: spare ones, and those that it holds."""
        return _merged(self._spare.get(pool_name, {}), own)

    def _give_back(self, key: SlotKey) -> None:
        self._spare.setdefault(self._pool_name(key), {}).setdefault(key.node_id, []).append(key.slot)

    def _leave(self, allocation: Allocation) -> None:
        for key in _keys(allocation):
            del self._granted[key]
            if key in self._free:
                self._give_back(key)

    def _take(self, job_id: str, allocation: Allocation) -> None:
        for key in _keys(allocation):
            self._granted[key] = job_id
            slots = self._spare.get(self._pool_name(key), {}).get(key.node_id, [])
            if key.slot in slots:
                slots.remove(key.slot)


def _keys(allocation: Allocation) -> Iterable[SlotKey]:
    return (SlotKey(node, slot) for node, slots in allocation.items() for slot in slots)


def _first(slots: Sequence[int], count: int, near: Sequence[int]) -> tuple[int, ...]:
    """Return `count` of the slots, those in `near` first, in ascending order."""
    return tuple(sorted(sorted(slots, key=lambda slot: (slot not in near, slot))[:count]))


def _merged(room: Mapping[str, Sequence[int]], keys: Iterable[SlotKey]) -> _Room:
    merged = {node: list(slots) for node, slots in room.items() if slots}
    for key in keys:
        if key.slot not in merged.setdefault(key.node_id, []):
            merged[key.node_id].append(key.slot)
    return merged


def _without(room: Mapping[str, Sequence[int]], allocation: Allocation) -> _Room:
    return {
        node: [slot for slot in slots if slot not in allocation.get(node, ())] for node, slots in room.items()
    }
