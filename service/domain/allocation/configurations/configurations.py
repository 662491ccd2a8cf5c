"""Configurations of a round: the allocations that each pool can provide."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from headway.contract.values.markets import Market
from service.domain.allocation.configurations.capacity import PoolCapacity
from service.domain.allocation.configurations.eligibility import Holding
from service.domain.allocation.configurations.kind_mixes import kind_mixes
from service.domain.allocation.configurations.shapes import (
    Shapes,
    SizeGroup,
    regular_sizes,
    shapes_of,
    standard_node,
)
from service.domain.cluster.market_limits import MarketLimit
from service.domain.cluster.pools import Pool, slots_in
from service.domain.jobs.job import Job
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import FloatArray, IntArray

_TOO_MANY_SIZES = 256
"""Number of sizes above which a pool gets columns only for regular sizes (`shapes.regular_sizes`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns (C,) of the allocation problem in the pools (P,), in three groups.

    The first group has the columns of shapes, pool after pool. The second has the columns in two pools: an
    anchor on-demand and the rest on spot, or slots of two device kinds. The third, for jobs with private slots, repeats columns at a lower
    demand. Private slots are slots that no other job can have.

    Attributes:
        configurations: the columns for policies, whose kinds are the pools. A column in both markets counts as
            one of spot, any other one in two pools as one of the last.
        by_kind: the same columns by device kind alone, for all calculations of speed.
        pools: (P,) in the order of their names.
        groups: sets of columns that differ only in size; columns of private slots or of two kinds are in none.
        shapes: by pool.
        parts: (C, P) slots that each column has in each pool.
        shape: (C, P) index of the pool's shape for that part; -1 for none.
        demand: (C, P) slots that each column takes from the shared capacity.
        private: (C, P) number of private slots that its job must hold; 0 for the columns of all jobs.
        places: index of the column by its parts and private slots.
    """

    configurations: Configurations
    by_kind: Configurations
    pools: tuple[Pool, ...]
    groups: tuple[SizeGroup, ...]
    shapes: tuple[Shapes, ...]
    parts: IntArray
    shape: IntArray
    demand: IntArray
    private: IntArray
    places: Mapping[tuple[int, ...], int]

    def unit_of(self, column: int, pool: int) -> int:
        """Return the largest piece of a column that is sure to lie on one node of a pool; 1 without such a
        guarantee.
        """
        shape = int(self.shape[column, pool])
        return int(self.shapes[pool].unit[shape]) if shape >= 0 else 1

    def parts_of(self, column: int) -> dict[Pool, int]:
        """Return the number of slots of a column in each of its pools."""
        return {
            pool: count for pool, count in zip(self.pools, self.parts[column].tolist(), strict=True) if count
        }

    def text_of(self, column: int) -> str:
        """Return a column as text for users."""
        return slots_in(self.parts_of(column))

    def private_of(self, holding: Holding) -> IntArray:
        """Return the private slots (P,) of a holding."""
        return np.array([holding.private_by_pool.get(pool.name, 0) for pool in self.pools], dtype=np.int64)

    def find(self, name: str | None, slots: int) -> int:
        """Return the column of this number of slots in the pool of this name; -1 if there is none."""
        parts = [slots if pool.name == name else 0 for pool in self.pools]
        return self.places.get((*parts, *[0] * len(parts)), -1)

    def held(self, holding: Holding) -> int:
        """Return the column of the slots that a job may keep; -1 if there is none."""
        parts = np.array([len(holding.by_pool.get(pool.name, ())) for pool in self.pools], dtype=np.int64)
        return self.places.get((*parts.tolist(), *self.private_of(holding).tolist()), -1)


def columns_of(
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    capacities: Mapping[str, PoolCapacity],
    limits: Mapping[str, MarketLimit] = MappingProxyType({}),
) -> Columns:
    """Return a column for every size that some job may have in a pool, and in two pools for jobs that accept
    both markets or mix device kinds. `limits` are the market limits of jobs.
    """
    pools = tuple(capacity.pool for capacity in capacities.values())
    wanted = {size for job in jobs for size in _sizes(job)}
    mixes = [*_mixes(jobs, holdings, capacities, limits), *kind_mixes(jobs, holdings, capacities)]
    shapes = [
        shapes_of(
            _wanted_in(capacity, wanted, jobs, holdings, {mix[index] for mix in mixes}),
            node_slots=capacity.slots,
            room=capacity.room,
        )
        for index, capacity in enumerate(capacities.values())
    ]
    parts, shape, groups = _parts(shapes, mixes, capacities)
    nodes = np.zeros(len(parts), dtype=np.int64)
    for index, one in enumerate(shapes):
        nodes += np.append(one.nodes, 0)[shape[:, index]]
    crosses = _crosses(parts, capacities)
    private = np.zeros_like(parts)
    for amounts in _private_amounts(holdings, pools):
        needs = np.where(parts > 0, amounts, 0)
        own = np.flatnonzero((needs == amounts).all(axis=1) & (private == 0).all(axis=1))
        parts, nodes = np.concatenate([parts, parts[own]]), np.concatenate([nodes, nodes[own]])
        crosses = None if crosses is None else np.concatenate([crosses, crosses[own]])
        shape = np.concatenate([shape, np.full((len(own), len(pools)), -1)])
        private = np.concatenate([private, needs[own]])
    # A column in two pools is counted with the pool that may be lost.
    kind = np.array([np.flatnonzero(one > 0)[-1] for one in parts], dtype=np.int64)
    configurations = Configurations(
        kinds=tuple(capacities),
        kind=kind,
        slots=parts.sum(axis=1),
        nodes=nodes,
        usd_per_h=_prices(parts, capacities),
        crosses=crosses,
    )
    return Columns(
        configurations=configurations,
        by_kind=_by_kind(configurations, pools, parts),
        pools=pools,
        groups=groups,
        shapes=tuple(shapes),
        parts=parts,
        shape=shape,
        demand=np.maximum(parts - private, 0),
        private=private,
        places={
            (*of_pools, *own): column
            for column, (of_pools, own) in enumerate(zip(parts.tolist(), private.tolist(), strict=True))
        },
    )


def _prices(parts: IntArray, capacities: Mapping[str, PoolCapacity]) -> FloatArray:
    """Return the dollars per hour (C,) of columns with these slots (C, P) by pool."""
    usd_per_h = np.zeros(len(parts))
    for index, capacity in enumerate(capacities.values()):
        usd_per_h += np.where(parts[:, index] > 0, parts[:, index] * capacity.usd_per_slot_h, 0.0)
    return usd_per_h


def _crosses(parts: IntArray, capacities: Mapping[str, PoolCapacity]) -> IntArray | None:
    """Return the level (C,) that each column must cross; None if no node has labels. Columns in two pools count none."""
    if not any(capacity.within for capacity in capacities.values()):
        return None
    alone = (parts > 0).sum(axis=1) == 1
    found = [one.crossed(parts[:, pool]) for pool, one in enumerate(capacities.values())]
    return np.where(alone, np.max(found, axis=0), 0)


def _by_kind(configurations: Configurations, pools: Sequence[Pool], parts: IntArray) -> Configurations:
    kinds = tuple(dict.fromkeys(pool.kind for pool in pools))
    of_pool = np.array([kinds.index(pool.kind) for pool in pools], dtype=np.int64)
    by_kind = np.zeros((len(parts), len(kinds)), dtype=np.int64)
    for pool, kind in enumerate(of_pool.tolist()):
        by_kind[:, kind] += parts[:, pool]
    return Configurations(
        kinds=kinds,
        kind=of_pool[configurations.kind],
        slots=configurations.slots,
        nodes=configurations.nodes,
        usd_per_h=configurations.usd_per_h,
        parts=by_kind if ((by_kind > 0).sum(axis=1) > 1).any() else None,
        crosses=configurations.crosses,
    )


def _parts(
    shapes: Sequence[Shapes], mixes: Sequence[tuple[int, ...]], capacities: Mapping[str, PoolCapacity]
) -> tuple[IntArray, IntArray, tuple[SizeGroup, ...]]:
    """Return slots (C, P) by pool, their shapes (C, P), and the groups of columns that differ only in size.

    Columns of one pool come first, then those of two pools.
    """
    first = np.cumsum([0, *(len(one.slots) for one in shapes)])
    parts = np.zeros((int(first[-1]) + len(mixes), len(shapes)), dtype=np.int64)
    shape = np.full(parts.shape, -1, dtype=np.int64)
    groups = []
    for pool, one in enumerate(shapes):
        columns = np.arange(first[pool], first[pool + 1])
        parts[columns, pool], shape[columns, pool] = one.slots, np.arange(len(columns))
        groups.append(SizeGroup(columns=columns, slots=one.slots, regular=one.regular))
    alike: dict[tuple[int, int], list[int]] = {}
    pools = [one.pool for one in capacities.values()]
    spot = np.array([pool.market is Market.SPOT for pool in pools], dtype=np.bool_)
    for column, mix in enumerate(mixes, start=int(first[-1])):
        parts[column] = mix
        for pool in np.flatnonzero(parts[column]).tolist():
            shape[column, pool] = int(np.searchsorted(shapes[pool].slots, mix[pool]))
        kinds = {pool.kind for pool, count in zip(pools, mix, strict=True) if count}
        if len(kinds) > 1:
            continue
        lost = int(np.flatnonzero((parts[column] > 0) & spot)[0])
        alike.setdefault((lost, int(parts[column][~spot].sum())), []).append(column)
    nodes = [capacity.slots for capacity in capacities.values()]
    for (pool, _), members in alike.items():
        members.sort(key=lambda column: int(parts[column].sum()))
        groups.append(
            SizeGroup(
                columns=np.array(members, dtype=np.int64),
                slots=parts[members].sum(axis=1),
                regular=np.isin(parts[members, pool], regular_sizes(nodes[pool])),
            )
        )
    return parts, shape, tuple(groups)


def _mixes(
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    capacities: Mapping[str, PoolCapacity],
    limits: Mapping[str, MarketLimit],
) -> list[tuple[int, ...]]:
    """Return the mixes (P,) of both markets for jobs that accept both: one slot or one node on-demand, the
    rest on spot. With market limits, powers of two and the largest number of on-demand nodes are mixed too.
    """
    names = list(capacities)
    found: set[tuple[int, int, int, int]] = set()
    for spot, capacity in enumerate(capacities.values()):
        anchor_pool = replace(capacity.pool, market=Market.ON_DEMAND)
        if capacity.pool.market is not Market.SPOT or anchor_pool.name not in capacities:
            continue
        firm, anchors = names.index(anchor_pool.name), capacities[anchor_pool.name].slots
        sizes = {
            size
            for job in jobs
            if anchor_pool.serves(job.spec) and capacity.pool.serves(job.spec)
            for size in _sizes(job)
        }
        if len(sizes) > _TOO_MANY_SIZES:
            sizes &= set(regular_sizes(capacity.slots).tolist())
        node = standard_node(anchors)
        most = max((one.slots.get(anchor_pool.priced_as, 0) for one in limits.values()), default=0)
        for anchor in {1, node, *_node_counts(min(most, int(anchors.sum())) // node, node)}:
            rests = (size - anchor for size in sizes if anchor <= anchors.sum())
            found |= {(firm, spot, anchor, rest) for rest in rests if 0 < rest <= capacity.slots.sum()}
        for one in holdings.values():
            kept = [len(one.by_pool.get(names[pool], ())) for pool in (firm, spot)]
            if all(kept):
                found.add((firm, spot, kept[0], kept[1]))
    mixes = []
    for firm, spot, anchor, rest in sorted(found):
        mix = [0] * len(names)
        mix[firm], mix[spot] = anchor, rest
        mixes.append(tuple(mix))
    return mixes


def _node_counts(nodes: int, size: int) -> set[int]:
    """Return the slots of powers of two of nodes of one size, and of all of the nodes."""
    return {size << power for power in range(nodes.bit_length())} | ({nodes * size} - {0})


def _private_amounts(holdings: Mapping[str, Holding], pools: Sequence[Pool]) -> list[IntArray]:
    """Return the private slots (P,) that jobs hold: of every single pool first, then of two pools together."""
    found = {
        tuple(one.private_by_pool.get(pool.name, 0) for pool in pools)
        for one in holdings.values()
        if one.private_by_pool
    }
    alone = {
        tuple(amount if at == pool else 0 for at, amount in enumerate(amounts))
        for amounts in found
        for pool in range(len(pools))
    }

    def order(amounts: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        held = [pool for pool, amount in enumerate(amounts) if amount]
        return len(held), held[0], amounts

    return [np.array(one, dtype=np.int64) for one in sorted((found | alone) - {(0,) * len(pools)}, key=order)]


def _sizes(job: Job) -> tuple[int, ...]:
    pinned = () if job.pinned_size is None else (job.pinned_size,)
    return (*job.spec.allowed_sizes(), *pinned)


def _largest(ascending: Sequence[int], most: int) -> int:
    """Return the largest of these sizes up to `most`; 0 if all are larger."""
    below = bisect_right(ascending, most)
    return ascending[below - 1] if below else 0


def _wanted_in(
    capacity: PoolCapacity,
    wanted: set[int],
    jobs: Sequence[Job],
    holdings: Mapping[str, Holding],
    of_mixes: Iterable[int],
) -> IntArray:
    """Return the sizes that get a column in a pool.

    If there are very many, these are the regular sizes and the sizes that must have a column: the smallest and the
    largest possible size of each job, fixed sizes, and sizes that jobs hold.
    """
    most = int(capacity.slots.sum())
    here = {size for size in wanted if size <= most}
    if len(here) > _TOO_MANY_SIZES:
        needed = {min(_sizes(job)) for job in jobs} | {job.pinned_size or 0 for job in jobs}
        limits = (most, int(capacity.room.sum()))
        needed |= {_largest(job.spec.allowed_sizes(), limit) for job in jobs for limit in limits}
        here &= needed | set(regular_sizes(capacity.slots).tolist())
    pool = capacity.pool
    here |= {
        holding.size
        for holding in holdings.values()
        if holding.kind == pool.kind
        and (pool.name in holding.by_pool or (not holding.by_pool and pool.market is Market.ON_DEMAND))
    }
    return np.array(sorted(here | set(of_mixes)), dtype=np.int64)
