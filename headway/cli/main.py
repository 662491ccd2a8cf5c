"""`headway`: the list of verbs, and the one place that turns errors into a message and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from headway.cli import (
    agent,
    audit,
    budget,
    checkpoints,
    decisions,
    doctor,
    follow,
    jobs,
    join_token,
    local,
    login,
    machines,
    nodes,
    project,
    recommend,
    secret,
    simulate,
    token,
    user,
    whatif,
)
from headway.cli.context import Cli, of
from headway.errors import HeadwayError


class _Verbs(TyperGroup):
    """Runs a verb; an error that people can act on is printed as such: what went wrong, what to do next."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeadwayError as error:
            console = ctx.obj.err
            console.print(Text(error.what, style="red"), soft_wrap=True)
            if error.hint:
                console.print(Text(error.hint), soft_wrap=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headway {installed_version('headway')}")
        raise typer.Exit


@app.callback()
def _surroundings(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Elastic PyTorch training: submit jobs, watch them, change their size.

    HEADWAY_URL and HEADWAY_TOKEN name the service; without them, the one that `headway up` started.
    """
    context.obj = context.obj or Cli()


def version(context: typer.Context) -> None:
    """Show the versions of this program and of the service."""
    cli = of(context)
    cli.out.print(f"headway {installed_version('headway')}")
    try:
        with cli.connect() as client:
            cli.out.print(f"service {client.version()} at {client.url}")
    except HeadwayError as error:
        cli.out.print(f"service: {error}", soft_wrap=True)


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "This machine": (local.up, local.down, doctor.doctor, agent.agent, version),
    "Jobs": (jobs.submit, jobs.ps, jobs.describe, follow.logs, follow.events, checkpoints.checkpoints),
    "Decisions": (
        decisions.plan,
        decisions.forecast,
        decisions.explain,
        decisions.rounds,
        decisions.policy,
        whatif.whatif,
        simulate.simulate,
    ),
    "Money": (recommend.recommend, recommend.offers, budget.usage),
    "Steering jobs": (jobs.priority, jobs.resize, jobs.pause, jobs.resume, jobs.cancel),
    "Nodes": (
        nodes.nodes,
        machines.machines,
        nodes.drain,
        nodes.cordon,
        nodes.uncordon,
        nodes.quarantine,
        nodes.release,
    ),
    "Access": (login.login, login.whoami, audit.audit),
}
for _panel, _verbs in _PANELS.items():
    for _verb in _verbs:
        settings = agent.AGENT_SETTINGS if _verb is agent.agent else None
        app.command(rich_help_panel=_panel, context_settings=settings)(_verb)
app.add_typer(budget.budget, name="budget", rich_help_panel="Money")
app.add_typer(join_token.join_token, name="join-token", rich_help_panel="Nodes")
app.add_typer(token.token, name="token", rich_help_panel="Access")
app.add_typer(project.project, name="project", rich_help_panel="Access")
app.add_typer(user.user, name="user", rich_help_panel="Access")
app.add_typer(secret.secret, name="secret", rich_help_panel="Access")
