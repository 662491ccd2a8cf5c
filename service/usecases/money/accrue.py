"""The update of the ledger: the use of every paid slot, and the job that is charged for it.

A pass rewrites everything that is not settled. Passes are therefore idempotent, and late events are still
charged correctly. Data older than a few minutes is settled. A failure that takes work back, or a provider
that corrects a bill, reopens the hours concerned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from service.domain.rental.ledger import (
    HOUR_US,
    BilledLease,
    Held,
    JobHistory,
    Lease,
    Place,
    hour_of,
    to_us,
    write,
)
from service.domain.rental.paid import lease_of_machine, leases_of_host
from service.domain.rental.timeline import TimelineEvent, first_difference_us, phases_of
from service.domain.shared.retention import HISTORY_KEPT
from service.usecases.ports.money import LedgerState
from service.usecases.ports.transactions import Transaction

SETTLE_US = 300 * 1_000_000
"""Maximum delay of an event that is charged correctly without reopening an hour."""
SETTLE_BY_US = 300 * 1_000_000
"""Granularity of settlement: settled rows grow once per this interval, not in every pass."""


async def accrue(
    tx: Transaction, usd_per_slot_h: Mapping[str, float], now: datetime, *, history: timedelta = HISTORY_KEPT
) -> int:
    """Run one pass over the ledger. Return the number of leases that were written.

    `usd_per_slot_h` are prices by device kind for hosts that are not rented. Hours older than `history` are
    not reopened, since their events are not kept in full.
    """
    state, now_us = await tx.ledger.lock(), to_us(now)
    accrued_us = now_us if state.accrued_us is None else state.accrued_us
    settle_us = (accrued_us - SETTLE_US) // SETTLE_BY_US * SETTLE_BY_US
    due = await _due(tx, usd_per_slot_h, accrued_us, settle_us, now)
    last, changed = await tx.ledger.new_events(state.events_before)
    if state.accrued_us is not None and changed:
        oldest_us = hour_of(to_us(now - history)) + HOUR_US
        await _reopen(tx, due, changed, state, settle_us, oldest_us)
    by_since: dict[int, list[Lease]] = {}
    for lease, since_us in due.values():
        by_since.setdefault(since_us, []).append(lease)
    for since_us, leases in sorted(by_since.items()):
        await _write(tx, leases, since_us, settle_us)
    events_before = last if state.accrued_us is None else state.events_to
    # The ledger's progress must not move back when a clock is set back.
    await tx.ledger.save_state(LedgerState(max(accrued_us, now_us), last, events_before))
    return len(due)


async def _due(
    tx: Transaction, usd_per_slot_h: Mapping[str, float], accrued_us: int, settle_us: int, now: datetime
) -> dict[str, tuple[Lease, int]]:
    """Return the leases to write, by id, each with the moment from which to write it."""
    due = {one.id: (one, _since(one, one, settle_us)) for one in await tx.ledger.unsettled(settle_us)}
    for one in await tx.ledger.machines_due(now):
        lease = lease_of_machine(one.machine, one.host, one.known, now)
        if lease is not None:
            due[lease.id] = (lease, _since(lease, one.known, settle_us))
    for host, known in await tx.ledger.hosts():
        before = {one.id: one for one in known}
        for lease in leases_of_host(host, known, usd_per_slot_h, accrued_us):
            due[lease.id] = (lease, _since(lease, before.get(lease.id), settle_us))
    return due


def _since(lease: Lease, known: Lease | None, settle_us: int) -> int:
    """Return the moment from which to write a lease: where it is settled, or the start of an hour if that is
    not valid.
    """
    if known is None:
        return hour_of(lease.from_us)
    if known.from_us != lease.from_us:
        return hour_of(min(known.from_us, lease.from_us))
    since_us = known.settled_us
    if since_us is None:
        since_us = hour_of(min(settle_us, known.to_us))
    return since_us if since_us <= lease.to_us else hour_of(lease.to_us)


async def _reopen(
    tx: Transaction,
    due: dict[str, tuple[Lease, int]],
    job_ids: Collection[str],
    state: LedgerState,
    settle_us: int,
    oldest_us: int,
) -> None:
    """Reopen hours from `oldest_us` on for which new events, before `settle_us`, contradict the phases known
    at the last pass.
    """
    timelines = await tx.ledger.timeline_events(job_ids, None)
    for job_id, found in timelines.items():
        old = [mark for mark in found if mark.sequence <= state.events_before]
        differs_us = first_difference_us(phases_of(old), phases_of(found))
        if differs_us is None or differs_us >= settle_us:
            continue
        differs_us = max(differs_us, oldest_us)
        held = await tx.ledger.held(differs_us, job_id=job_id)
        nodes = {one.place[0] for one in held if one.from_us < settle_us}
        for stored in await tx.ledger.leases_on(nodes, differs_us):
            lease, since_us = due.get(stored.id, (stored, settle_us))
            due[stored.id] = (lease, max(min(since_us, hour_of(differs_us)), hour_of(lease.from_us)))


async def _write(tx: Transaction, leases: Collection[Lease], since_us: int, settle_us: int) -> None:
    nodes = {one.node_id for one in leases if one.node_id is not None}
    held = await tx.ledger.held(since_us, node_ids=nodes) if nodes else []
    job_ids = {one.job_id for one in held}
    timelines = await tx.ledger.timeline_events(job_ids, since_us) if job_ids else {}
    members = await tx.ledger.members(job_ids, since_us) if job_ids else {}
    # Computing all charges is pure computation. It runs in a thread, so that the other loops go on.
    written = await asyncio.to_thread(_write_all, leases, held, timelines, members, since_us, settle_us)
    await tx.ledger.store(written, since_us)


def _write_all(
    leases: Collection[Lease],
    held: Collection[Held],
    timelines: Mapping[str, Sequence[TimelineEvent]],
    members: Mapping[str, tuple[str, Mapping[int, frozenset[Place]]]],
    since_us: int,
    settle_us: int,
) -> list[BilledLease]:
    jobs = {
        job_id: JobHistory(project, phases_of(timelines.get(job_id, [])), generations)
        for job_id, (project, generations) in members.items()
    }
    by_node: dict[str | None, list[Held]] = {}
    for one in held:
        by_node.setdefault(one.place[0], []).append(one)
    return [write(lease, by_node.get(lease.node_id, ()), jobs, since_us, settle_us) for lease in leases]
