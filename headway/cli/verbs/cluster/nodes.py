"""The verbs about nodes and their slots."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.text import Text

from headway.cli.context import Cli, Format, NodeName, Output, of
from headway.cli.render import nodes as render_nodes
from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.views.jobs import Page
from headway.contract.views.nodes import NodeView
from headway.errors import HeadwayError

_POLL_S = 0.5
SlotIndex = Annotated[int, typer.Argument(metavar="SLOT", min=0, help="number of a slot of the node")]


def nodes(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List nodes, and the jobs that hold their slots."""
    cli = of(context)
    with cli.connect() as client:
        found = list(client.nodes())
    empty = Text("No nodes. To add one, run headway join-token create here and headway agent on the host.")
    cli.show(output, Page[NodeView](items=found), render_nodes.nodes_table(found) if found else empty)


def drain(
    context: typer.Context,
    node: NodeName,
    wait: Annotated[bool, typer.Option("--wait", help="wait until the node holds no job")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Move a node's jobs away after a checkpoint, and schedule no new jobs on it."""
    cli = of(context)
    with cli.connect() as client:
        view = client.drain(node)
        if wait:
            view = _wait_drained(cli, client, view)
    cli.show(output, view, _line(view))


def cordon(context: typer.Context, node: NodeName, output: Output = Format.TABLE) -> None:
    """Schedule no new jobs on a node; its present jobs stay."""
    cli = of(context)
    with cli.connect() as client:
        view = client.cordon(node)
    cli.show(output, view, _line(view))


def uncordon(context: typer.Context, node: NodeName, output: Output = Format.TABLE) -> None:
    """Schedule jobs on a cordoned or drained node again."""
    cli = of(context)
    with cli.connect() as client:
        view = client.uncordon(node)
    cli.show(output, view, _line(view))


def quarantine(
    context: typer.Context,
    node: NodeName,
    slot: SlotIndex,
    why: Annotated[str, typer.Option("--why", help="reason, shown with the slot")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Schedule no jobs on a slot until it is released; a job that holds it moves away."""
    cli = of(context)
    with cli.connect() as client:
        view = client.quarantine(node, slot, why=why)
    cli.show(output, view, _slot_line(view, slot))


def release(context: typer.Context, node: NodeName, slot: SlotIndex, output: Output = Format.TABLE) -> None:
    """Schedule jobs on a slot again, whatever the reason for its quarantine."""
    cli = of(context)
    with cli.connect() as client:
        view = client.release(node, slot)
    cli.show(output, view, _slot_line(view, slot))


def _slot_line(view: NodeView, index: int) -> Text:
    held = next(slot for slot in view.slots if slot.index == index)
    state = render_nodes.quarantine(held.quarantine) if held.quarantine else "takes jobs"
    return Text.assemble((f"{view.name} slot {index}", "bold"), f": {state}")


def _wait_drained(cli: Cli, client: Client, node: NodeView) -> NodeView:
    """Wait until the node is empty, and return it.

    Raises:
        HeadwayError: the node was uncordoned, lost or removed in the meantime.
    """
    with cli.err.status(Text(f"draining {node.name}")) as status:
        while True:
            view = next((each for each in client.nodes() if each.id == node.id), None)
            if view is None:
                raise HeadwayError(f"Node {node.name} is gone.", "List the nodes: headway nodes.")
            if view.state is NodeState.DRAINED:
                return view
            if view.state is not NodeState.DRAINING:
                raise HeadwayError(f"Node {view.name} is {view.state}: {view.message}", "See: headway nodes.")
            status.update(Text(f"draining {view.name}: {render_nodes.holders(view.slots)}"))
            time.sleep(_POLL_S)


def _line(view: NodeView) -> Text:
    return Text.assemble(
        (view.name, "bold"), f" is {view.state}{f': {view.message}' if view.message else ''}"
    )
