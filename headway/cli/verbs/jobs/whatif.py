"""The verb `headway whatif`, which has the service simulate the live cluster with changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from headway import jobfile
from headway.cli.context import Cli, Format, Output, of
from headway.cli.render import whatif as render_whatif
from headway.client.client import Client
from headway.contract.values.quantities import duration_s
from headway.contract.views.decisions import PolicyRequest
from headway.contract.views.simulations import (
    AddJob,
    AddNodes,
    Change,
    DropJob,
    KillNode,
    RemoveNodes,
    SetBudget,
    SetPolicy,
    SetPrice,
    SimulationRequest,
    SimulationStatus,
    SimulationView,
)
from headway.errors import HeadwayError

Model = TypeVar("Model", bound=BaseModel)

_NODES = re.compile(r"(?P<kind>[^=]+)=(?P<nodes>\d+)(x(?P<slots>\d+))?")
_FAILED = 1


AddedNodes = Annotated[
    list[str] | None, typer.Option(metavar="KIND=NODES[xSLOTS]", help="more nodes, e.g. a100=2x8; repeatable")
]
RemovedNodes = Annotated[
    list[str] | None, typer.Option(metavar="KIND=NODES", help="fewer nodes of a kind; repeatable")
]
KilledNodes = Annotated[list[str] | None, typer.Option(metavar="NODE", help="remove this node; repeatable")]
Policies = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[:KEY=VALUE,...]", help="another policy; repeat it to compare several"),
]
AddedJobs = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE[@WHEN]", help="add the job of a file, e.g. job.yaml@30m; repeatable"),
]
DroppedJobs = Annotated[list[str] | None, typer.Option(metavar="JOB", help="remove this job; repeatable")]
Prices = Annotated[
    list[str] | None, typer.Option(metavar="KIND=USD", help="price of a slot for an hour; repeatable")
]


def whatif(
    context: typer.Context,
    add_nodes: AddedNodes = None,
    remove_nodes: RemovedNodes = None,
    remove_node: KilledNodes = None,
    budget: Annotated[float | None, typer.Option(metavar="USD", help="limit on dollars per hour")] = None,
    policy: Policies = None,
    add_job: AddedJobs = None,
    drop_job: DroppedJobs = None,
    price: Prices = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=20, help="number of runs, each with other sizes and speeds")
    ] = 3,
    horizon: Annotated[str, typer.Option(metavar="TIME", help="time span of the simulation")] = "14d",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="wait for the result, or only print the id")
    ] = True,
    output: Output = Format.TABLE,
) -> None:
    """Simulate the cluster with more or fewer nodes, another budget or policy, or other jobs.

    Nothing is changed. The service simulates its own decisions from the present state of the jobs, with and
    without the changes.

    Examples: headway whatif --add-nodes a100=2x8;
    headway whatif --remove-node host-3 --policy goodput --policy srtf
    """
    cli = of(context)
    changes: list[Change] = [
        *(_add_nodes(each) for each in add_nodes or []),
        *(_remove_nodes(each) for each in remove_nodes or []),
        *(_validate(KillNode, "--remove-node", node=each) for each in remove_node or []),
        *(_price(each) for each in price or []),
        *(_validate(DropJob, "--drop-job", job=each) for each in drop_job or []),
        *(_add_job(each) for each in add_job or []),
    ]
    request = _request(changes, [_policy(each) for each in policy or []], budget, seeds, horizon)
    with cli.connect() as client:
        view = client.simulate(request)
        if wait:
            view = _wait(cli, client, view)
    _show(cli, output, view)


def _request(
    changes: list[Change], policies: list[PolicyRequest], budget: float | None, seeds: int, horizon: str
) -> SimulationRequest:
    """Return the request for a simulation.

    A single policy becomes one of the changes; several policies, including that of a budget, are compared.
    """
    if budget is not None and policies:
        parameters = {"usd_per_h": budget}
        policies = [*policies, _validate(PolicyRequest, "--budget", policy="budget", parameters=parameters)]
    elif budget is not None:
        changes = [*changes, _validate(SetBudget, "--budget", usd_per_h=budget)]
    if len(policies) == 1:
        (one,), policies = policies, []
        changes = [*changes, _validate(SetPolicy, "--policy", policy=one.policy, parameters=one.parameters)]
    if not changes and not policies:
        raise HeadwayError(
            "There is nothing to simulate: no change was given.",
            "Give a change, e.g. --add-nodes a100=2x8; see headway whatif --help.",
        )
    horizon_s = _seconds("--horizon", horizon)
    fields = {"changes": changes, "policies": policies, "seeds": seeds, "horizon_s": horizon_s}
    return _validate(SimulationRequest, "whatif", **fields)


def _show(cli: Cli, output: Format, view: SimulationView) -> None:
    if view.result is not None:
        cli.show(output, view, render_whatif.result_page(view.result))
        return
    cli.show(output, view, Text(f"Simulation {view.id} {view.status}: {view.message}"))
    if view.status in {SimulationStatus.FAILED, SimulationStatus.CANCELLED}:
        raise typer.Exit(_FAILED)


def _wait(cli: Cli, client: Client, view: SimulationView) -> SimulationView:
    """Show the progress of the simulation until it ends. Ctrl-C cancels it."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30))
    try:
        with Progress(*columns, console=cli.err, transient=True) as bar:
            task = bar.add_task(view.message, total=1.0)
            for view in client.wait_simulation(view.id):  # noqa: B020, PLR1704  # a newer view of the same simulation
                bar.update(task, completed=view.progress, description=view.message)
    except KeyboardInterrupt:
        client.cancel_simulation(view.id)
        cli.err.print("\nThe simulation was cancelled.")
        raise typer.Exit(130) from None
    return view


def _add_nodes(text: str) -> AddNodes:
    found = _parts("--add-nodes", text, "a100=2x8")
    slots = None if found["slots"] is None else int(found["slots"])
    return _validate(
        AddNodes, "--add-nodes", device_kind=found["kind"], nodes=int(found["nodes"] or 0), slots=slots
    )


def _remove_nodes(text: str) -> RemoveNodes:
    found = _parts("--remove-nodes", text, "a100=2")
    if found["slots"] is not None:
        raise HeadwayError(
            f"--remove-nodes {text}: only whole nodes can be removed.", "Write it like --remove-nodes a100=2."
        )
    return _validate(RemoveNodes, "--remove-nodes", device_kind=found["kind"], nodes=int(found["nodes"] or 0))


def _parts(option: str, text: str, like: str) -> dict[str, str | None]:
    match = _NODES.fullmatch(text.strip())
    if match is None:
        raise HeadwayError(f"{option} {text}: not of the form {like}.", f"Write it like {option} {like}.")
    return match.groupdict()


def _price(text: str) -> SetPrice:
    kind, _, usd = text.partition("=")
    return _validate(
        SetPrice, "--price", device_kind=kind.strip(), usd_per_slot_h=_number("--price", text, usd)
    )


def _add_job(text: str) -> AddJob:
    file, at, when = text.rpartition("@")
    if not at:
        return _validate(AddJob, "--add-job", spec=jobfile.load(Path(text)))
    return _validate(AddJob, "--add-job", spec=jobfile.load(Path(file)), after_s=_seconds("--add-job", when))


def _policy(text: str) -> PolicyRequest:
    name, _, rest = text.partition(":")
    parameters = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        parameters[key.strip()] = _number("--policy", text, value)
    return _validate(PolicyRequest, "--policy", policy=name.strip(), parameters=parameters)


def _seconds(option: str, text: str) -> float:
    return _number(option, text, text, duration_s)


def _number(option: str, text: str, value: str, parse: Callable[[str], float] = float) -> float:
    try:
        return parse(value)
    except ValueError:
        raise HeadwayError(
            f"{option} {text}: {value!r} is not a number.", "See headway whatif --help."
        ) from None


def _validate(model: type[Model], option: str, **fields: Any) -> Model:
    """Return a part of the request, or raise an error that names the option."""
    try:
        return model(**fields)
    except ValidationError as error:
        problems = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]
        lines = [f"{option}: {where}: {message}".replace(": :", ":") for where, message in problems]
        raise HeadwayError("\n".join(lines), "Correct the option; see headway whatif --help.") from None
