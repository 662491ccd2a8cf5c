"""Ledger: every slot-microsecond of a lease is in exactly one row, by its job and its category.

Times are whole microseconds since 1970, so nothing is rounded and parts add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from headway.contract.values.markets import Market
from headway.contract.views.money import Category
from service.domain.rental.timeline import Phase

HOUR_US = 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)

Place = tuple[str, int]
"""Slot, as node id and slot index."""


def to_us(moment: datetime) -> int:
    """Return the moment as whole microseconds since 1970."""
    return (moment - _EPOCH) // _US


def from_us(microseconds: int) -> datetime:
    """Return the moment of a number of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def hour_of(microseconds: int) -> int:
    """Return the beginning of the hour (UTC) that contains a moment."""
    return microseconds - microseconds % HOUR_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Slots that are paid for from `from_us` to `to_us`.

    `node_id` is None while no agent runs on a rented machine. `usd_per_slot_h` is None if no price is known.
    `open` is true while the lease continues. Rows up to `settled_us` are final unless they prove wrong; it is
    None before the first row.
    """

    id: str
    node_id: str | None
    machine_id: str | None
    slots: tuple[int, ...]
    device_kind: str
    market: Market
    usd_per_slot_h: float | None
    from_us: int
    to_us: int
    open: bool
    settled_us: int | None = None

    @property
    def slot_us(self) -> int:
        """Slot-microseconds of the lease, which is the sum of its rows."""
        return len(self.slots) * (self.to_us - self.from_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Period from `from_us` to `to_us` in which a job held a slot. `to_us` is None while the job still holds it."""

    place: Place
    job_id: str
    from_us: int
    to_us: int | None


@dataclass(frozen=True, slots=True)
class JobHistory:
    """History of a job: its phases, and the slots of its generations."""

    project: str
    phases: tuple[Phase, ...]
    members: Mapping[int, AbstractSet[Place]] = field(default_factory=dict)


class ChargeKey(NamedTuple):
    """Key of the charges within a lease.

    `hour_us` is the beginning of an hour. `job_id` and `project` are empty where no job had the slot, and
    `cause` is empty where nothing was lost.
    """

    hour_us: int
    job_id: str
    project: str
    category: Category
    cause: str


class SettledTime(NamedTuple):
    """Slot-microseconds of a row, and the settled part of them."""

    slot_us: int
    settled_us: int


@dataclass(frozen=True, slots=True)
class BilledLease:
    """Lease with the time to add to its rows."""

    lease: Lease
    rows: Mapping[ChargeKey, SettledTime]


class _Interval(NamedTuple):
    from_us: int
    to_us: int
    job_id: str
    category: Category
    cause: str


def write(
    lease: Lease, held: Sequence[Held], jobs: Mapping[str, JobHistory], since_us: int, settle_us: int
) -> BilledLease:
    """Return the rows of the lease from `since_us` on, settled up to `settle_us` if the lease extends that far.

    Rows before `since_us` stay as they are. A closed lease that ends before `settle_us` is settled as a whole.
    """
    settled_us = max(settle_us, since_us)
    if settled_us > lease.to_us:
        settled_us = since_us if lease.open else lease.to_us
    settled = split(replace(lease, to_us=settled_us), held, jobs, since_us)
    still_open = split(lease, held, jobs, settled_us)
    rows = {
        row: SettledTime(settled.get(row, 0) + still_open.get(row, 0), settled.get(row, 0))
        for row in (*settled, *still_open)
    }
    return BilledLease(replace(lease, settled_us=settled_us), rows)


def split(
    lease: Lease, held: Sequence[Held], jobs: Mapping[str, JobHistory], since_us: int
) -> dict[ChargeKey, int]:
    """Return the slot-microseconds of the lease from `since_us` on, by row. Their sum is the number of slots times
    that period.
    """
    by_place: dict[Place, list[Held]] = {}
    for one in held:
        by_place.setdefault(one.place, []).append(one)
    rows: dict[ChargeKey, int] = {}
    begin = max(since_us, lease.from_us)
    for slot in lease.slots:
        place = (lease.node_id or "", slot)
        for piece in _of_slot(place, by_place.get(place, ()), jobs, begin, lease.to_us):
            project = jobs[piece.job_id].project if piece.job_id else ""
            for hour_us, length in _by_hour(piece.from_us, piece.to_us):
                row = ChargeKey(hour_us, piece.job_id, project, piece.category, piece.cause)
                rows[row] = rows.get(row, 0) + length
    return rows


def _of_slot(
    place: Place, held: Sequence[Held], jobs: Mapping[str, JobHistory], begin: int, end: int
) -> Iterator[_Interval]:
    """Yield the time of one slot, cut at every change.

    The clocks of two services may make grants overlap slightly. The earlier grant keeps that time.
    """
    now = begin
    for one in sorted(held, key=lambda one: (one.from_us, one.job_id)):
        first = min(max(now, one.from_us), end)
        last = min(max(first, end if one.to_us is None else one.to_us), end)
        if now < first:
            yield _Interval(now, first, "", Category.IDLE, "")
        if first < last:
            yield from _of_job(place, one.job_id, jobs[one.job_id], first, last)
        now = max(now, last)
    if now < end:
        yield _Interval(now, end, "", Category.IDLE, "")


def _of_job(place: Place, job_id: str, job: JobHistory, first: int, last: int) -> Iterator[_Interval]:
    """Yield the time of a slot while a job held it. Time outside every phase counts as RESIZE."""
    now = first
    for phase in job.phases:
        begin, end = max(phase.from_us, now), min(phase.to_us, last)
        if begin >= end:
            continue
        if now < begin:
            yield _Interval(now, begin, job_id, Category.RESIZE, "")
        members = job.members.get(phase.generation)
        on_its_way = members is not None and place not in members
        category = Category.RESIZE if on_its_way else phase.category
        yield _Interval(begin, end, job_id, category, "" if on_its_way else phase.cause)
        now = end
    if now < last:
        yield _Interval(now, last, job_id, Category.RESIZE, "")


def _by_hour(begin: int, end: int) -> Iterator[tuple[int, int]]:
    while begin < end:
        hour = hour_of(begin)
        cut = min(end, hour + HOUR_US)
        yield hour, cut - begin
        begin = cut
