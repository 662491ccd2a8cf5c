"""The verb `headway machines`, which lists rented machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headway.cli.context import Format, Output, of
from headway.cli.render import jobs as render
from headway.contract.values.quantities import duration
from headway.contract.views.jobs import Page
from headway.contract.views.machines import MachineView

_STYLES = {"running": "green", "launching": "cyan", "wanted": "cyan", "ending": "yellow", "failed": "red"}


def machines(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", "-a", help="include ended machines")] = False,
    output: Output = Format.TABLE,
) -> None:
    """List rented machines, why they were rented and what they have cost."""
    cli = of(context)
    with cli.connect() as client:
        found = list(client.machines(open_only=not every))
    empty = Text(
        "No machine is rented now; --all lists ended ones. To rent, set HEADWAY_PROVIDERS of the service, or run "
        "`headway up --rent FILE`. See docs/renting.md."
    )
    cli.show(output, Page[MachineView](items=found), machines_table(found) if found else empty)


def machines_table(found: Sequence[MachineView]) -> Table:
    """Return the table of `headway machines`."""
    names = ("MACHINE", "NODE", "TYPE", "MARKET", "STATE", ">SLOTS", ">USD/H", ">BILLED", ">COST")
    table = render.columns(*names, fold=["WHY"])
    for one in found:
        where = f" {one.zone or one.region}"
        table.add_row(
            one.external_id or one.id,
            one.node or "",
            f"{one.instance_type}{where}",
            one.market,
            Text(one.state, style=_STYLES.get(one.state, "dim")),
            f"{one.slots} {one.device_kind}",
            f"{one.usd_per_h:,.4g}",
            duration(one.billed_s) if one.billed_from is not None else "",
            render.usd(one.cost_usd) if one.billed_from is not None else "",
            Text(one.message),
        )
    return table
