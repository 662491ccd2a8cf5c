"""Usage and costs as the API shows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headway.contract.views.money import GroupBy, LeaseBill, Usage, UsageView
from service.domain.shared.errors import InvalidField
from service.usecases.ports.transactions import Transaction

_TIMES = ("from", "to")


async def view_usage(
    tx: Transaction,
    *,
    since: datetime | None,
    until: datetime | None,
    by: GroupBy,
    projects: frozenset[str] | None,
    now: datetime,
) -> UsageView:
    """Return the usage from `since` (default: start of the month) to `until` (default: now), by group and in
    total.

    With `projects`, count their jobs; with None, count everything.

    Raises:
        InvalidField: a time has no zone or is out of range in UTC, or the times are in the wrong order.
    """
    begin, end = times_of(since, until, now)
    groups = await tx.spending.usage(begin, end, by, projects=projects)
    # The total is summed from the same parts for every grouping. Sums of other parts would differ in the last
    # digits.
    total = await tx.spending.usage(begin, end, GroupBy.CATEGORY, projects=projects)
    return UsageView(
        from_=begin,
        to=end,
        accrued_to=await tx.spending.accrued_at(),
        group_by=by,
        total=Usage(**{name: sum(getattr(one, name) for one in total) for name in Usage.model_fields}),
        groups=groups,
        unpriced_kinds=await tx.spending.unpriced_kinds(begin, end),
    )


async def machine_bills(
    tx: Transaction, *, since: datetime | None, until: datetime | None, now: datetime
) -> list[LeaseBill]:
    """Return the leases of rented machines that were billed in a period, according to their providers and to
    the ledger.
    """
    return await tx.spending.machine_bills(*times_of(since, until, now))


def times_of(since: datetime | None, until: datetime | None, now: datetime) -> tuple[datetime, datetime]:
    """Return the requested period, from the start of an hour to the end of one."""
    for name, moment in zip(_TIMES, (since, until), strict=True):
        if moment is not None and moment.tzinfo is None:
            raise InvalidField(name, "it needs a time zone, for example 2026-12-01T00:00:00Z")
    end = _utc("to", until or now)
    begin = end.replace(day=1, hour=0) if since is None else _utc("from", since)
    begin = begin.replace(minute=0, second=0, microsecond=0)
    if begin > end:
        raise InvalidField("from", "it is later than `to`, the end of the requested period")
    return begin, end + timedelta(microseconds=1) if until is None else end


def _utc(name: str, moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidField(name, "it lies outside the years 1 to 9999 in UTC") from error
