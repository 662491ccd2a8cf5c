"""Mixes of two device kinds: the divisions of a job's size over two pools that get a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from service.domain.allocation.configurations.capacity import PoolCapacity
from service.domain.allocation.configurations.eligibility import Holding
from service.domain.jobs.job import Job

MOST_MIXES = 64
"""Largest number of mixes of two pools. With more, the most uneven divisions have no column."""


def kind_mixes(
    jobs: Sequence[Job], holdings: Mapping[str, Holding], capacities: Mapping[str, PoolCapacity]
) -> list[tuple[int, ...]]:
    """Return the mixes (P,) of two kinds on one market for the jobs that mix them, and those that jobs hold.

    A part is a power of two or the whole pool, so that few columns follow the shapes of nodes. Of a size that
    is itself a power of two, or the largest of a job, one part may be any number.
    """
    mixing = [job for job in jobs if job.spec.elastic.mix]
    if not mixing:
        return []
    pools = list(capacities.values())
    found: set[tuple[int, ...]] = set()
    for first, second in combinations(range(len(pools)), 2):
        one, other = pools[first].pool, pools[second].pool
        if one.kind == other.kind or one.market is not other.market:
            continue
        sizes: set[int] = set()
        largest: set[int] = set()
        for job in mixing:
            accepted = {one.kind, other.kind} <= set(job.spec.elastic.mix)
            if accepted and one.serves(job.spec) and other.serves(job.spec):
                sizes.update(job.sizes)
                largest.add(max(job.sizes))
        most = int(pools[first].slots.sum()), int(pools[second].slots.sum())
        for mine, theirs in divisions(sizes, largest, most):
            found.add(_parts(len(pools), {first: mine, second: theirs}))
    for job in mixing:
        held = {index: len(holdings[job.id].by_pool.get(name, ())) for index, name in enumerate(capacities)}
        held = {index: count for index, count in held.items() if count}
        if len({pools[index].pool.kind for index in held}) > 1:
            found.add(_parts(len(pools), held))
    return sorted(found)


def divisions(sizes: set[int], largest: set[int], most: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the divisions (mine, theirs) of `sizes` over two pools with at most so many slots."""
    typical = [{*(1 << power for power in range(slots.bit_length())), slots} for slots in most]
    found = set()
    for size in sizes:
        special = size in largest or size.bit_count() == 1
        for mine in typical[0] | {size - theirs for theirs in typical[1]}:
            theirs = size - mine
            usual = special + (mine in typical[0]) + (theirs in typical[1]) > 1
            if usual and 0 < mine <= most[0] and 0 < theirs <= most[1]:
                found.add((mine, theirs))
    order = sorted(found, key=lambda one: (max(one) / min(one), -sum(one), one))
    return sorted(order[:MOST_MIXES])


def _parts(pools: int, slots: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(slots.get(index, 0) for index in range(pools))
