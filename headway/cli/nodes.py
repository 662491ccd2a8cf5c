"""The verbs about nodes."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.text import Text

from headway.cli import render
from headway.cli.context import Cli, Format, NodeName, Output, of
from headway.client import Client
from headway.contract.agents import NodeState
from headway.contract.jobs import Page
from headway.contract.nodes import NodeView
from headway.errors import HeadwayError

_POLL_S = 0.5
SlotIndex = Annotated[int, typer.Argument(metavar="SLOT", min=0, help="number of a slot of the node")]


def nodes(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List nodes, and who holds which slot."""
    cli = of(context)
    with cli.connect() as client:
        found = list(client.nodes())
    empty = Text("No nodes. Add one: headway join-token create, then on the host headway agent")
    cli.show(output, Page[NodeView](items=found), render.nodes_table(found) if found else empty)


def drain(
    context: typer.Context,
    node: NodeName,
    wait: Annotated[bool, typer.Option("--wait", help="until the node holds no job")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Move a node's jobs away, after a checkpoint, and give it no new ones."""
    cli = of(context)
    with cli.connect() as client:
        view = client.drain(node)
        if wait:
            view = _wait_drained(cli, client, view)
    cli.show(output, view, _line(view))


def cordon(context: typer.Context, node: NodeName, output: Output = Format.TABLE) -> None:
    """Give a node no new jobs; it keeps those that it has."""
    cli = of(context)
    with cli.connect() as client:
        view = client.cordon(node)
    cli.show(output, view, _line(view))


def uncordon(context: typer.Context, node: NodeName, output: Output = Format.TABLE) -> None:
    """Let a cordoned or drained node take jobs again."""
    cli = of(context)
    with cli.connect() as client:
        view = client.uncordon(node)
    cli.show(output, view, _line(view))


def quarantine(
    context: typer.Context,
    node: NodeName,
    slot: SlotIndex,
    why: Annotated[str, typer.Option("--why", help="shown to whoever asks")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Keep a slot with a bad device from jobs until it is released; the job that is on it moves away."""
    cli = of(context)
    with cli.connect() as client:
        view = client.quarantine(node, slot, why=why)
    cli.show(output, view, _slot_line(view, slot))


def release(context: typer.Context, node: NodeName, slot: SlotIndex, output: Output = Format.TABLE) -> None:
    """Give a slot to jobs again, whatever kept it from them."""
    cli = of(context)
    with cli.connect() as client:
        view = client.release(node, slot)
    cli.show(output, view, _slot_line(view, slot))


def _slot_line(view: NodeView, index: int) -> Text:
    held = next(slot for slot in view.slots if slot.index == index)
    state = render.quarantine(held.quarantine) if held.quarantine else "takes jobs"
    return Text.assemble((f"{view.name} slot {index}", "bold"), f": {state}")


def _wait_drained(cli: Cli, client: Client, node: NodeView) -> NodeView:
    """The node once it is empty.

    Raises:
        HeadwayError: it was uncordoned, lost or removed meanwhile.
    """
    with cli.err.status(Text(f"draining {node.name}")) as status:
        while True:
            view = next((each for each in client.nodes() if each.id == node.id), None)
            if view is None:
                raise HeadwayError(f"Node {node.name} is gone.", "See what is there: headway nodes.")
            if view.state is NodeState.DRAINED:
                return view
            if view.state is not NodeState.DRAINING:
                raise HeadwayError(f"Node {view.name} is {view.state}: {view.message}", "See: headway nodes.")
            status.update(Text(f"draining {view.name}: {render.holders(view.slots)}"))
            time.sleep(_POLL_S)


def _line(view: NodeView) -> Text:
    return Text.assemble(
        (view.name, "bold"), f" is {view.state}{f': {view.message}' if view.message else ''}"
    )
