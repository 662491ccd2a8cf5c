"""Slots that a round leaves to nobody because their ranks are slow and faster slots are free."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from headway.contract.views.jobs import JobState
from service.domain.cluster.pools import Pool
from service.domain.cluster.snapshot import SlotKey, Snapshot


def without_stragglers(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without marked slots that free ones of their pool can replace.

    A job leaves a marked slot only if it can do so in place, which costs a moment; elsewhere it keeps the slot, which is
    better than none. While a job waits for slots of the pool, marked ones are used as any other.
    """
    if not snapshot.stragglers:
        return snapshot
    waiting = [job.spec for job in snapshot.jobs.values() if job.state is JobState.PENDING]
    wanted = {pool for pool in set(snapshot.pools.values()) if any(pool.serves(spec) for spec in waiting)}
    spare: dict[Pool, int] = defaultdict(int)
    for key in snapshot.free:
        pool = snapshot.pool_of(key)
        if pool is not None and pool not in wanted and key not in snapshot.stragglers:
            spare[pool] += 1
    hidden: dict[str, set[int]] = defaultdict(set)
    # Held slots come first: a free one that stays in view is the last that a job would take.
    for key in sorted(snapshot.stragglers, key=lambda key: (key not in snapshot.held, key.node_id, key.slot)):
        pool = snapshot.pool_of(key) if key.node_id in snapshot.nodes else None
        if pool is None or spare[pool] == 0 or not _may_leave(snapshot, key):
            continue
        if key in snapshot.held:
            spare[pool] -= 1
        hidden[key.node_id].add(key.slot)
    nodes = dict(snapshot.nodes)
    for node_id, slots in hidden.items():
        node = nodes[node_id]
        nodes[node_id] = replace(
            node,
            slots={slot: kind for slot, kind in node.slots.items() if slot not in slots},
            quarantined={
                **node.quarantined,
                **{slot: snapshot.stragglers[SlotKey(node_id, slot)] for slot in slots},
            },
        )
    return replace(snapshot, nodes=nodes)


def _may_leave(snapshot: Snapshot, key: SlotKey) -> bool:
    """Return True if no job holds the slot, or one that changes its slots in place."""
    job = snapshot.jobs.get(snapshot.held.get(key, ""))
    return key not in snapshot.held or (job is not None and job.live and job.state is JobState.RUNNING)
