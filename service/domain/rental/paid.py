"""Paid periods: leases of rented machines, and the presence of hosts that are not rented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, count, islice

from headway.contract.values.markets import Market
from service.domain.rental.ledger import Lease, to_us
from service.domain.rental.machines import Machine, paid_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Node as the ledger needs it. `slots` maps indices to device kinds. `seen_us` is the time of its last report."""

    node_id: str
    lost: bool
    slots: Mapping[int, str]
    market: Market
    usd_per_slot_h: float | None
    joined_us: int
    seen_us: int


def lease_of_machine(machine: Machine, host: Host | None, known: Lease | None, now: datetime) -> Lease | None:
    """Return the lease of a rented machine, or None before its provider bills it.

    `host` is the node that has joined from the machine. From then on it belongs to the lease, even if the
    node later joins from another machine. Slots that the agent does not report are paid for and count as
    idle.
    """
    until = paid_until(machine, now)
    if until is None or machine.billed_from is None:
        return None
    node_id = host.node_id if host is not None else None
    slots = _slots_of(machine, host)
    if known is not None and known.node_id is not None:
        node_id, slots = known.node_id, known.slots
    return Lease(
        id=machine.id,
        node_id=node_id,
        machine_id=machine.id,
        slots=slots,
        device_kind=machine.device_kind,
        market=machine.market,
        usd_per_slot_h=machine.usd_per_slot_h,
        from_us=to_us(machine.billed_from),
        to_us=to_us(until),
        open=machine.billed_to is None,
    )


def _slots_of(machine: Machine, host: Host | None) -> tuple[int, ...]:
    """Return as many slots as are paid for: the slots that the agent reports, then unused numbers."""
    reported = sorted(host.slots) if host is not None else []
    unused = (index for index in count() if index not in reported)
    return tuple(islice(chain(reported, unused), machine.slots))


def leases_of_host(
    host: Host, known: Sequence[Lease], prices: Mapping[str, float], accrued_us: int
) -> list[Lease]:
    """Return the current leases of a host that is not rented.

    `known` are its open leases. They continue or end, and a new lease begins where slots or prices have
    changed. A host was present until its last report. `prices` are by device kind. `accrued_us` is the time
    up to which the ledger was last updated: time that it did not see, such as a period in which the host was
    LOST, is not charged later.
    """
    if host.lost:
        return [replace(one, open=False) for one in known]
    found = []
    for kind in sorted(set(host.slots.values())):
        slots = tuple(sorted(index for index, one in host.slots.items() if one == kind))
        price = host.usd_per_slot_h if host.usd_per_slot_h is not None else prices.get(kind)
        same = (slots, kind, host.market, price)
        goes_on = next(
            (one for one in known if (one.slots, one.device_kind, one.market, one.usd_per_slot_h) == same),
            None,
        )
        if goes_on is not None:
            found.append(replace(goes_on, to_us=max(goes_on.to_us, host.seen_us)))
            continue
        changed = [one.to_us for one in known if one.device_kind == kind]
        begin = max([host.joined_us, *changed] if changed else [host.joined_us, accrued_us])
        found.append(
            Lease(
                id=f"{host.node_id}/{kind}/{begin}",
                node_id=host.node_id,
                machine_id=None,
                slots=slots,
                device_kind=kind,
                market=host.market,
                usd_per_slot_h=price,
                from_us=begin,
                to_us=max(begin, host.seen_us),
                open=True,
            )
        )
    kept = {one.id for one in found}
    return [replace(one, open=False) for one in known if one.id not in kept] + found
