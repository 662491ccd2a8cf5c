"""The table of a job's processes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from headway.cli.render.jobs import columns
from headway.contract.views.ranks import RankView


def ranks_table(ranks: Sequence[RankView]) -> Table:
    """Return the table of `headway ranks`."""
    table = columns(">RANK", "NODE", ">SLOT", ">PID", "STARTED AS", "PART")
    for one in ranks:
        pid = "-" if one.pid is None else str(one.pid)
        table.add_row(str(one.rank), one.node, str(one.slot), pid, one.member, one.part)
    return table
