"""Tables of recommendations and offers. All functions take values and return renderables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.cli.render.jobs import columns, rate
from headway.contract.values.dollars import dollars
from headway.contract.values.markets import Market
from headway.contract.values.quantities import duration
from headway.contract.views.recommendations import (
    GroupView,
    Objective,
    OfferPage,
    PricedOffer,
    RecommendationView,
    RentalPlan,
)

_LIMITS = {"max_cost_usd": "budget", "deadline_s": "deadline", "max_usd_per_h": "dollars an hour"}
_BASIS = {
    "measured": "measured",
    "transferred": "from another kind",
    "given": "as you said",
    "assumed": "a guess",
}


def recommendation_page(view: RecommendationView) -> RenderableType:
    """Return the page of `headway recommend`: the best plan in words and all plans side by side.

    Without a feasible plan, return the nearest plan for each limit.
    """
    parts: list[RenderableType] = []
    if view.plans:
        parts += [*_best(view), Text(), _plans(view.plans, flopp=view.objective is Objective.FLOPP)]
    else:
        parts.append(Text("No plan is within the limits.", style="bold"))
        parts += [Text(f"  {_LIMITS[one.limit]}: {one.reason}") for one in view.nearest]
        if view.nearest:
            parts += [Text(), _plans([one.plan for one in view.nearest], flopp=False)]
    parts += [Text(f"note: {line}", style="dim") for line in view.warnings]
    parts.append(Text(f"{view.weighed} plans weighed; work: {view.work.reason}.", style="dim"))
    return Group(*parts)


def machines_of(plan: RentalPlan) -> str:
    """Return the machines of a plan as text."""
    return _machines(plan.groups)


def _best(view: RecommendationView) -> Iterator[Text]:
    best = view.plans[0]
    yield Text.assemble(
        ("Rent ", "bold"), (_machines(best.groups), "bold"), f": ${best.usd_per_h:,.4g} an hour"
    )
    yield Text(
        f"  done in {duration(best.time_s)} (P90 {duration(best.time_p90_s)}) for {dollars(best.cost_usd)} "
        f"(P90 {dollars(best.cost_p90_usd)})"
    )
    for line in best.reasons:
        yield Text(f"  {line}")


def _plans(plans: Sequence[RentalPlan], *, flopp: bool) -> Table:
    figures = (">SLOTS", ">$/H", ">GOODPUT/S", ">KEPT", ">TIME", ">P90", ">COST", ">P90")
    table = columns(">#", "RENT", "ARCHITECTURE", *figures, "FLOPP" if flopp else "SPEED IS", fold=["NOTE"])
    for number, one in enumerate(plans, start=1):
        table.add_row(
            str(number),
            _machines(one.groups),
            one.architecture,
            f"{one.slots} {one.device_kind}",
            f"{one.usd_per_h:,.4f}",
            rate(one.goodput),
            f"{one.kept:.0%}",
            duration(one.time_s),
            duration(one.time_p90_s),
            dollars(one.cost_usd),
            dollars(one.cost_p90_usd),
            f"{one.flopp:.4g}" if flopp and one.flopp is not None else _BASIS[one.basis],
            "; ".join(one.marks),
        )
    return table


def offers_page(page: OfferPage) -> RenderableType:
    """Return the page of `headway offers`."""
    if not page.items:
        return Group(Text("No offer matches all conditions."), *_notes(page.notes))
    figures = (">TFLOPS", ">VCPUS", ">MEMORY", ">GBIT/S", ">ON DEMAND", ">SPOT", ">LOST/H")
    table = columns("TYPE", "PROVIDER", "WHERE", "DEVICES", *figures, "SEEN")
    for one in page.items:
        table.add_row(
            one.instance_type,
            one.provider,
            one.zone or one.region,
            f"{one.devices} {one.device_kind}",
            f"{one.tflops:,.4g}" if one.tflops else "-",
            str(one.vcpus or "-"),
            f"{one.memory_bytes / 2**30:,.4g}G" if one.memory_bytes else "-",
            f"{one.network_gbps:,.4g}" if one.network_gbps else "-",
            _price(one.on_demand_usd_per_h),
            _price(one.spot_usd_per_h),
            f"{one.hazard_per_h:.2g}",
            f"{one.seen_at:%Y-%m-%d}",
        )
    return Group(table, *_notes(page.notes))


def priced_page(view: RecommendationView, market: Market | None) -> RenderableType:
    """Return the page of `headway offers --for`: the cost of the job's goodput on each offer."""
    if not view.offers:
        return Group(Text("No offer matches all conditions."), *_notes(view.warnings))
    unit = "A MILLION SAMPLES" if view.unit == "samples" else "AN HOUR OF ONE T4"
    prices = (">$/H", ">SPOT $/H", f">$ FOR {unit}", ">ON SPOT")
    table = columns("TYPE", "WHERE", "DEVICES", ">GOODPUT/S", "SPEED IS", *prices)
    for one in sorted(view.offers, key=lambda each: _lowest_cost(each, market)):
        table.add_row(
            one.offer.instance_type,
            one.offer.zone or one.offer.region,
            f"{one.offer.devices} {one.offer.device_kind}",
            rate(one.goodput),
            _BASIS[one.basis],
            _price(one.offer.on_demand_usd_per_h),
            _price(one.offer.spot_usd_per_h),
            _price(one.on_demand_usd_per_unit),
            _price(one.spot_usd_per_unit),
        )
    return Group(table, *_notes(view.warnings))


def costs_at_most(one: PricedOffer, market: Market | None, max_usd_per_h: float | None) -> bool:
    """Return whether a market (None: any market) sells the offer for at most `max_usd_per_h`."""
    prices = {Market.ON_DEMAND: one.offer.on_demand_usd_per_h, Market.SPOT: one.offer.spot_usd_per_h}
    wanted = [prices[market]] if market else [*prices.values()]
    return any(price is not None and (max_usd_per_h is None or price <= max_usd_per_h) for price in wanted)


def _lowest_cost(one: PricedOffer, market: Market | None) -> float:
    prices = {Market.ON_DEMAND: one.on_demand_usd_per_unit, Market.SPOT: one.spot_usd_per_unit}
    wanted = [prices[market]] if market else [*prices.values()]
    return min((price for price in wanted if price is not None), default=float("inf"))


def _machines(groups: Sequence[GroupView]) -> str:
    """Return machines as text, such as `17 g4dn.xlarge spot + 1 c5.xlarge on-demand (remote)`."""
    return " + ".join(
        f"{one.machines} {one.instance_type} {one.market}"
        + ("" if one.role == "worker" else f" ({one.role})")
        for one in groups
    )


def _notes(lines: Sequence[str]) -> list[Text]:
    return [Text(f"note: {line}", style="dim") for line in lines]


def _price(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
