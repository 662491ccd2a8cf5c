"""Tables of budgets and usage. All functions take values and return renderables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.cli.render.jobs import columns, usd
from headway.contract.values.dollars import digits_after, dollars_with
from headway.contract.values.quantities import duration
from headway.contract.views.money import BudgetKind, BudgetView, LeaseBill, Usage, UsageView

_FIGURES = 3
"""Significant digits of a total."""
_CATEGORIES = (">USEFUL", ">UNKNOWN", ">RESIZE", ">LOST", ">IDLE")
_KINDS = {BudgetKind.HOURLY_CAP: "$/h at any moment", BudgetKind.LONG_RUN: "$/h on average"}


def budgets_table(budgets: Sequence[BudgetView]) -> Table:
    """Return the table of `headway budget`."""
    money = (">SPENT", ">NOW $/H", ">AT THE END", ">LAST $ WORTH")
    table = columns("NAME", "OF", ">DOLLARS", "FOR", "LIMIT", *money, fold=["HOW IT STANDS"])
    for one in budgets:
        style = "bold red" if one.over or one.exhausted else ""
        table.add_row(
            one.name,
            one.project or "cluster",
            usd(one.usd),
            f"a {one.period}" if one.period is not None else _KINDS[one.kind],
            "hard" if one.hard else "soft",
            usd(one.spent_usd),
            usd(one.usd_per_h),
            usd(one.forecast_usd),
            "-" if one.usd_price is None else f"{one.usd_price.price:.4g}",
            Text(one.message, style=style),
        )
    return table


def usage_page(view: UsageView) -> RenderableType:
    """Return the page of `headway usage`: the groups, their total, and notes on slots without a price."""
    unpriced = 0 < view.total.slot_h <= view.total.unpriced_slot_h
    table = _usage_in_hours(view) if unpriced else _usage_in_dollars(view)
    notes = []
    kinds = ", ".join(view.unpriced_kinds)
    if unpriced:
        notes.append(
            f"{kinds} has no price, so the table counts slot-hours. For dollars, set HEADWAY_PRICES."
        )
    elif view.unpriced_kinds:
        notes.append(
            f"{kinds} has no price: the dollars leave out {view.total.unpriced_slot_h:,.2f} slot-hours. "
            "Set HEADWAY_PRICES."
        )
    if view.accrued_to is None:
        notes.append("Nothing has been charged yet. The scheduler updates the ledger every few seconds.")
    span = f"{_moment(view.from_)} to {_moment(view.to)}; the start is rounded to a whole hour"
    return Group(Text(span, style="dim"), table, *(Text(note, style="yellow") for note in notes))


def _usage_in_dollars(view: UsageView) -> Table:
    table = columns(view.group_by.upper(), ">DOLLARS", *_CATEGORIES, ">SLOT-HOURS")
    digits = digits_after(view.total.usd, _FIGURES)
    for one in view.groups:
        table.add_row(one.label or "none", *_figures(one, digits))
    table.add_section()
    table.add_row(Text("in all", style="bold"), *_figures(view.total, digits))
    return table


def _usage_in_hours(view: UsageView) -> Table:
    """Return the groups in slot-hours, with the share of each in the total, for slots without a price."""
    table = columns(view.group_by.upper(), ">SLOT-HOURS", ">SHARE", *_CATEGORIES)
    total = view.total.slot_h
    digits = digits_after(total, _FIGURES)
    for label, one in [*((one.label or "none", one) for one in view.groups), ("in all", view.total)]:
        if one is view.total:
            table.add_section()
        parts = (one.unknown_slot_h, one.resize_slot_h, one.lost_slot_h, one.idle_slot_h)
        table.add_row(
            Text(label, style="bold" if one is view.total else ""),
            f"{one.slot_h:,.{digits}f}",
            f"{one.slot_h / total:.0%}",
            f"{one.useful_slot_h:,.{digits}f}{_share(one.useful_slot_h, one.slot_h)}",
            *(f"{part:,.{digits}f}" for part in parts),
        )
    return table


def _figures(usage: Usage, digits: int) -> tuple[str, ...]:
    """Return the figures of one row.

    All rows have as many decimals as the total, so that a column can be added up.
    """
    parts = (usage.usd, usage.useful_usd, usage.unknown_usd, usage.resize_usd, usage.lost_usd, usage.idle_usd)
    all_, useful, *others = (dollars_with(part, digits) for part in parts)
    return all_, useful + _share(usage.useful_usd, usage.usd), *others, f"{usage.slot_h:,.{digits}f}"


def _share(part: float, whole: float) -> str:
    return f" ({part / whole:.0%})" if whole > 0 else ""


def bills_table(bills: Sequence[LeaseBill]) -> Table:
    """Return the table of `headway usage --machines`: the billed and the charged time of each lease."""
    table = columns("MACHINE", "TYPE", "MARKET", "BILLED FROM", "TO", ">PAID FOR", ">CHARGED", ">DOLLARS")
    digits = digits_after(sum(one.usd for one in bills), _FIGURES)
    for one in bills:
        table.add_row(
            one.machine_id,
            one.instance_type,
            one.market,
            f"{one.billed_from.astimezone():%m-%d %H:%M:%S}",
            "open" if one.billed_to is None else f"{one.billed_to.astimezone():%m-%d %H:%M:%S}",
            duration(one.paid_s),
            Text(duration(one.charged_s), style="" if abs(one.paid_s - one.charged_s) < 1e-3 else "bold red"),
            dollars_with(one.usd, digits),
        )
    return table


def _moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
