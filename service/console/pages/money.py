"""The page of spending: budgets and their pace, and spending with its useful share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headway.contract.views.machines import MachineView
from headway.contract.views.money import BudgetKind, BudgetView, GroupBy, Usage, UsageGroup, UsageView
from service.api.http.context import ApiContext
from service.console.html.fragments import Content, Fragment, Listing
from service.console.html.text import NONE, charge, duration, number, percent, plural, stamp, usd
from service.console.pages.page import Key, LivePage, Memory
from service.console.pictures.job_curves import Chart
from service.usecases.money.budgets import list_budgets
from service.usecases.money.usage import view_usage
from service.usecases.rental.views import seen_machines

_READ_EVERY_S = 5.0
_MACHINES = 50


@dataclass(frozen=True, slots=True)
class BarShare:
    """A part of a bar, with `offset` and `width` in percent."""

    kind: str
    offset: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """The spending of a job, a project or all together, split by use."""

    label: str
    usd: str
    useful: str
    hours: str
    shares: tuple[BarShare, ...]


@dataclass(frozen=True, slots=True)
class BudgetCard:
    """A budget. `used` is the spent share, and `price` the value of one more dollar per hour."""

    name: str
    whose: str
    limit: str
    hard: bool
    used: float | None
    spent: str
    left: str
    rate: str
    forecast: str
    price: str
    message: str
    tone: str
    chart: Chart | None


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A machine that costs money, or may still do so."""

    name: str
    what: str
    state: str
    tone: str
    message: str
    cost: str
    rate: str
    since: str


def money_fragments(
    by_project: UsageView,
    by_job: UsageView,
    budgets: Sequence[BudgetView],
    days: Mapping[str, Sequence[UsageGroup]],
    machines: Sequence[MachineView],
) -> list[Content]:
    """Return the fragments of the page. `days` is the spending by day of each budget with a period, by the budget's name."""
    total, unpriced = by_project.total, by_project.unpriced_kinds
    amount = f"{number(round(total.slot_h, 1))} slot-hours" if not total.usd and unpriced else usd(total.usd)
    headline = f"{amount} since {by_project.from_:%-d %B}, {percent(_useful(total))} of it useful training."
    warning = (
        f"Slots of {', '.join(unpriced)} have no price, and what they cost is not counted: set HEADWAY_PRICES."
        if unpriced
        else ""
    )
    cards = [_card(one, days.get(one.name, ()), by_project.to) for one in budgets]
    return [
        Fragment("money-head", "money_head", (headline, _spent("In all", total), warning)),
        Fragment("no-budgets", "no_budgets", not cards),
        Listing("budgets", tuple(Fragment(f"budget-{one.name}", "budget", one) for one in cards)),
        *(Fragment(f"data-{one.chart.name}", "chart_data", one.chart) for one in cards if one.chart),
        Fragment("projects", "spending", ("projects", "Projects", _dearest(by_project.groups))),
        Fragment("spenders", "spending", ("spenders", "Jobs", _dearest(by_job.groups)[:12])),
        Fragment("machines", "machines", tuple(_machine(one) for one in machines)),
    ]


async def read(context: ApiContext, key: Key, memory: Memory) -> list[Content]:
    """Return the fragments of the page, for all projects or for one."""
    now = context.now()
    if memory.get("at") is not None and now - memory["at"] < timedelta(seconds=_READ_EVERY_S):
        kept: list[Content] = memory["money"]
        return kept
    seen = key.sight.projects
    asked = frozenset({key.project}) if key.project else seen
    projects = asked if seen is None or asked is None else asked & seen
    async with context.transactions.begin() as tx:
        by_project = await view_usage(
            tx, since=None, until=None, by=GroupBy.PROJECT, projects=projects, now=now
        )
        by_job = await view_usage(tx, since=None, until=None, by=GroupBy.JOB, projects=projects, now=now)
        budgets = await list_budgets(tx, now, seen=key.sight.projects)
        days = {
            one.name: (
                await view_usage(
                    tx,
                    since=one.period_from,
                    until=None,
                    by=GroupBy.DAY,
                    projects=None if one.project is None else frozenset({one.project}),
                    now=now,
                )
            ).groups
            for one in budgets
            if one.kind is BudgetKind.PERIOD
        }
        found = await tx.machines.views(now, open_only=True, limit=_MACHINES, cursor=None)
    machines = seen_machines(found, seen)
    memory["at"] = now
    fragments = money_fragments(by_project, by_job, budgets, days, machines.items)
    memory["money"] = fragments
    return fragments


PAGE = LivePage(name="money", label="Money", read=read, template="money.html")


def _dearest(groups: Sequence[UsageGroup]) -> tuple[SpendingRow, ...]:
    """Return the rows of the groups, those with the largest spending first."""
    ordered = sorted(groups, key=lambda one: (-one.usd, -one.slot_h, one.key))
    return tuple(_spent(one.label or "no job", one) for one in ordered)


def _useful(one: Usage) -> float:
    return one.useful_usd / one.usd if one.usd else one.useful_slot_h / one.slot_h if one.slot_h else 0.0


def _spent(label: str, one: Usage) -> SpendingRow:
    parts = {
        "useful": (one.useful_usd, one.useful_slot_h),
        "unknown": (one.unknown_usd, one.unknown_slot_h),
        "resize": (one.resize_usd, one.resize_slot_h),
        "lost": (one.lost_usd, one.lost_slot_h),
        "idle": (one.idle_usd, one.idle_slot_h),
    }
    paid = one.usd > 0
    whole = one.usd if paid else one.slot_h
    shares, offset = [], 0.0
    for kind, (dollars, hours) in parts.items():
        width = 100 * (dollars if paid else hours) / whole if whole else 0.0
        if width > 0:
            words = (
                f"{kind}: {usd(dollars) if paid else number(hours) + ' slot-hours'}, {percent(width / 100)}"
            )
            shares.append(BarShare(kind, round(offset, 2), round(width, 2), words))
        offset += width
    return SpendingRow(label, charge(one.usd), percent(_useful(one)), f"{one.slot_h:,.1f}", tuple(shares))


def _card(one: BudgetView, days: Sequence[UsageGroup], now: datetime) -> BudgetCard:
    per = {
        BudgetKind.HOURLY_CAP: "an hour, at every moment",
        BudgetKind.LONG_RUN: "an hour on average, in the long run",
    }.get(one.kind, f"a {one.period}")
    now_usd = one.spent_usd if one.kind is BudgetKind.PERIOD else one.usd_per_h
    if one.kind is BudgetKind.LONG_RUN:
        now_usd = one.average_usd_per_h
    price = one.usd_price
    return BudgetCard(
        name=one.name,
        whose=f"project {one.project}" if one.project else "the whole cluster",
        limit=f"{usd(one.usd)} {per}",
        hard=one.hard,
        used=min(1.0, now_usd / one.usd) if one.usd else None,
        spent=usd(now_usd),
        left=usd(one.remaining_usd),
        rate=f"{usd(one.usd_per_h)} an hour",
        forecast=usd(one.forecast_usd),
        price=f"one more dollar an hour was worth {number(price.price)} in the latest round" if price else "",
        message=one.message,
        tone="bad" if one.over or one.exhausted else "warn" if one.exhausted_at is not None else "good",
        chart=_burn_down(one, days, now) if one.kind is BudgetKind.PERIOD and one.period_to else None,
    )


def _burn_down(one: BudgetView, days: Sequence[UsageGroup], now: datetime) -> Chart:
    """Return the chart of the rest of a budget at the end of each day, against an even pace."""
    assert one.period_to is not None, "asked of budgets for a period only"
    left, points = one.usd, [(one.period_from, one.usd)]
    for group in sorted(days, key=lambda day: day.key):
        left -= group.usd
        at = datetime.fromisoformat(group.key).replace(tzinfo=one.period_from.tzinfo) + timedelta(days=1)
        points.append((min(at, one.period_to, now), left))
    data = {
        "x": [at.timestamp() for at, _ in points],
        "y": [round(value, 6) for _, value in points],
        "from": one.period_from.timestamp(),
        "to": one.period_to.timestamp(),
        "usd": one.usd,
        "forecast": None if one.forecast_usd is None else round(one.usd - one.forecast_usd, 6),
    }
    rows = tuple((f"{at:%-d %b}", usd(value)) for at, value in points)
    return Chart(f"burn-{one.name}", "burn", data, one.message, ("end of", "left"), rows)


def _machine(one: MachineView) -> MachineRow:
    ended = one.state in {"gone", "failed"}
    return MachineRow(
        name=one.node or one.external_id or one.id,
        what=f"{one.instance_type} in {one.zone or one.region}, {one.market}, {plural(one.slots, f'{one.device_kind} slot')}",
        state=one.state,
        tone={"running": "good", "failed": "bad", "gone": "off"}.get(one.state, "move"),
        message=one.message,
        cost=usd(one.cost_usd),
        rate=NONE if ended else f"{usd(one.usd_per_h)}/h",
        since=f"{stamp(one.requested_at)}, {duration(one.billed_s)} paid for",
    )
