"""Bring the ledger up to date: what every slot that is paid for did, and whose dollars these were.

A pass writes the rows of the hours that are not settled anew, so that a pass more or less changes nothing, and news that
come late find their place. Hours are settled a few minutes after their end; a failure that takes work back, or a provider
that corrects a bill, opens them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from service.domain.rental.ledger import (
    HOUR_US,
    Held,
    JobHistory,
    Lease,
    Place,
    Row,
    hour_of,
    split,
    to_us,
)
from service.domain.rental.paid import lease_of_machine, leases_of_host
from service.domain.rental.timeline import Mark, first_difference_us, phases_of
from service.usecases.money_ports import LedgerState
from service.usecases.ports import Transaction
from service.usecases.retention_ports import HISTORY_KEPT

SETTLE_US = 300 * 1_000_000
"""How late news may be and still find their hour open without further ado."""


async def accrue(
    tx: Transaction,
    usd_per_slot_h: Mapping[str, float],
    now: datetime,
    *,
    history: timedelta = HISTORY_KEPT,
) -> int:
    """One pass. `usd_per_slot_h` are prices by device kind, of hosts that nobody rented. Returns how many leases changed.

    No hour is opened again that is older than `history`: what was done in it is not kept in full any more.
    """
    state, now_us = await tx.ledger.lock(), to_us(now)
    accrued_us = now_us if state.accrued_us is None else state.accrued_us
    due = await _due(tx, usd_per_slot_h, accrued_us, now)
    last, fresh = await tx.ledger.news(state.events_before)
    if state.accrued_us is not None and fresh:
        oldest_us = hour_of(to_us(now - history)) + HOUR_US
        await _open_again(tx, due, fresh, state, hour_of(accrued_us - SETTLE_US), oldest_us)
    by_since: dict[int, list[Lease]] = {}
    for lease, since_us in due.values():
        by_since.setdefault(since_us, []).append(lease)
    for since_us, leases in sorted(by_since.items()):
        await _write(tx, leases, since_us)
    events_before = last if state.accrued_us is None else state.events_to
    # A clock that was set back must not make the ledger forget how far it is.
    await tx.ledger.save_state(LedgerState(max(accrued_us, now_us), last, events_before))
    return len(due)


async def _due(
    tx: Transaction, usd_per_slot_h: Mapping[str, float], accrued_us: int, now: datetime
) -> dict[str, tuple[Lease, int]]:
    """The leases to write, by id, with the hour from which on."""
    unsettled = hour_of(accrued_us - SETTLE_US)
    due: dict[str, tuple[Lease, int]] = {}

    def add(lease: Lease, known: Lease | None) -> None:
        since_us = hour_of(lease.from_us) if known is None else min(unsettled, hour_of(known.to_us))
        if known is not None and known.from_us != lease.from_us:
            since_us = hour_of(min(known.from_us, lease.from_us))
        due[lease.id] = (lease, min(since_us, hour_of(lease.to_us)))

    for one in await tx.ledger.machines_due(now):
        lease = lease_of_machine(one.machine, one.host, one.known, now)
        if lease is not None:
            add(lease, one.known)
    for host, known in await tx.ledger.hosts():
        before = {one.id: one for one in known}
        for lease in leases_of_host(host, known, usd_per_slot_h, accrued_us):
            add(lease, before.get(lease.id))
    return due


async def _open_again(
    tx: Transaction,
    due: dict[str, tuple[Lease, int]],
    job_ids: Collection[str],
    state: LedgerState,
    unsettled_us: int,
    oldest_us: int,
) -> None:
    """Have settled hours from `oldest_us` on written anew in which a job did something else than was known at the last
    pass.
    """
    marks = await tx.ledger.marks(job_ids, None)
    for job_id, found in marks.items():
        old = [mark for mark in found if mark.sequence <= state.events_before]
        differs_us = first_difference_us(phases_of(old), phases_of(found))
        if differs_us is None or differs_us >= unsettled_us:
            continue
        differs_us = max(differs_us, oldest_us)
        held = await tx.ledger.held(differs_us, job_id=job_id)
        nodes = {one.place[0] for one in held if one.from_us < unsettled_us}
        for stored in await tx.ledger.leases_on(nodes, differs_us):
            lease, since_us = due.get(stored.id, (stored, unsettled_us))
            due[stored.id] = (lease, max(min(since_us, hour_of(differs_us)), hour_of(lease.from_us)))


async def _write(tx: Transaction, leases: Collection[Lease], since_us: int) -> None:
    nodes = {one.node_id for one in leases if one.node_id is not None}
    held = await tx.ledger.held(since_us, node_ids=nodes) if nodes else []
    job_ids = {one.job_id for one in held}
    marks = await tx.ledger.marks(job_ids, since_us) if job_ids else {}
    members = await tx.ledger.members(job_ids, since_us) if job_ids else {}
    # Pure computation, of all that is paid for: in a thread, so that the other loops go on.
    written = await asyncio.to_thread(_split_all, leases, held, marks, members, since_us)
    await tx.ledger.store(written, since_us)


def _split_all(
    leases: Collection[Lease],
    held: Collection[Held],
    marks: Mapping[str, Sequence[Mark]],
    members: Mapping[str, tuple[str, Mapping[int, frozenset[Place]]]],
    since_us: int,
) -> list[tuple[Lease, dict[Row, int]]]:
    jobs = {
        job_id: JobHistory(project, phases_of(marks.get(job_id, [])), generations)
        for job_id, (project, generations) in members.items()
    }
    by_node: dict[str | None, list[Held]] = {}
    for one in held:
        by_node.setdefault(one.place[0], []).append(one)
    return [(lease, split(lease, by_node.get(lease.node_id, ()), jobs, since_us)) for lease in leases]
