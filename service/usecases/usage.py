"""What was spent, as the API shows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headway.contract.money import GroupBy, LeaseBill, Usage, UsageView
from service.domain.errors import InvalidField
from service.usecases.ports import Transaction

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
    """Usage in the hours from `since` (the beginning of the month) to `until` (now), by group, and in all: by jobs of
    these projects, or (None) all of it.

    Raises:
        InvalidField: a time has no zone or is none in UTC, or they are the wrong way round.
    """
    begin, end = times_of(since, until, now)
    groups = await tx.money_queries.usage(begin, end, by, projects=projects)
    # From the same parts however it is grouped: sums of other parts would differ in their last digits.
    total = await tx.money_queries.usage(begin, end, GroupBy.CATEGORY, projects=projects)
    return UsageView(
        from_=begin,
        to=end,
        accrued_to=await tx.money_queries.accrued_at(),
        group_by=by,
        total=Usage(**{name: sum(getattr(one, name) for one in total) for name in Usage.model_fields}),
        groups=groups,
        unpriced_kinds=await tx.money_queries.unpriced_kinds(begin, end),
    )


async def machine_bills(
    tx: Transaction, *, since: datetime | None, until: datetime | None, now: datetime
) -> list[LeaseBill]:
    """Leases of rented machines that were billed in a time, as their providers and as the ledger has them."""
    return await tx.money_queries.machine_bills(*times_of(since, until, now))


def times_of(since: datetime | None, until: datetime | None, now: datetime) -> tuple[datetime, datetime]:
    """The time that is asked about: from the beginning of an hour to the end of one."""
    for name, moment in zip(_TIMES, (since, until), strict=True):
        if moment is not None and moment.tzinfo is None:
            raise InvalidField(name, "it needs a time zone, for example 2026-12-01T00:00:00Z")
    end = _utc("to", until or now)
    begin = end.replace(day=1, hour=0) if since is None else _utc("from", since)
    begin = begin.replace(minute=0, second=0, microsecond=0)
    if begin > end:
        raise InvalidField("from", "it lies after the end of the time that is asked about; see `to`")
    return begin, end + timedelta(microseconds=1) if until is None else end


def _utc(name: str, moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidField(name, "it lies outside the years 1 to 9999 in UTC") from error
