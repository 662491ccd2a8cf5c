"""The verb `headway submit`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from headway.cli.context import Cli, Format, JobFile, Output, OwnProject, Replacements, of
from headway.cli.render import jobs as render
from headway.cli.render.sweeps import sweep_page
from headway.cli.verbs.jobs.reading import job_of
from headway.cli.waiting import EXIT_CODES, wait
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.spec_sweep import SweepSpec
from headway.contract.views.jobs import JobState, JobView, Reason
from headway.errors import HeadwayError, LeftOutWarning


def submit(
    context: typer.Context,
    file: JobFile,
    wait_: Annotated[
        bool,
        typer.Option(
            "--wait", help="show the job until it ends; exit 0 succeeded, 100 failed, 103 cancelled"
        ),
    ] = False,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="JOB[@CHECKPOINT]",
            help="start from a complete checkpoint of another job of the project; default: its newest",
        ),
    ] = None,
    set_: Replacements = None,
    project: OwnProject = None,
    output: Output = Format.TABLE,
) -> None:
    """Submit the job of a job file, or its sweep."""
    cli = of(context)
    spec = job_of(cli, file, set_, sweeps=True)
    base = Path.cwd() if str(file) == "-" else file.resolve().parent
    if isinstance(spec, SweepSpec):
        if from_ is not None:
            raise HeadwayError(
                "--from and sweep exclude each other.",
                "Let the script load the checkpoint, or leave --from out.",
            )
        with cli.connect_in(project) as client:
            _submit_sweep(cli, client, spec, base, output, waits=wait_)
        return
    with cli.connect_in(project) as client:
        with _left_out_told(cli):
            job = client.submit(spec, base=base, from_=from_)
        too_large = too_large_for(client, spec)
        if too_large:
            cli.warn([f"{job.name} {too_large}"])
        if not wait_:
            about = f"\n{job.message}" if spec.goal.deadline is not None else ""
            text = Text(f"{job.name} is submitted, id {job.id}. Follow it: headway logs -f {job.name}{about}")
            cli.show(output, job, text)
            return
        last = _wait(cli, client, job, output)
    raise typer.Exit(EXIT_CODES[last.state])


@contextmanager
def _left_out_told(cli: Cli) -> Iterator[None]:
    """Print the warnings about files that are left out of an upload."""
    with warnings.catch_warnings(record=True) as left_out:
        warnings.simplefilter("always", LeftOutWarning)
        yield
    cli.warn(str(one.message) for one in left_out)


def _submit_sweep(
    cli: Cli, client: Client, spec: SweepSpec, base: Path, output: Format, *, waits: bool
) -> None:
    with _left_out_told(cli):
        view = client.submit_sweep(spec, base=base)
    too_large = too_large_for(client, spec, end=f"headway sweep cancel {spec.name}")
    if too_large:
        cli.warn([f"Each trial {too_large}"])
    if waits:
        try:
            view = client.wait_sweep(view)
        except KeyboardInterrupt:
            cli.err.print(
                f"\n{view.name} continues. To see it: headway sweep {view.name}. To end it: headway sweep cancel {view.name}"
            )
            raise typer.Exit(130) from None
        cli.show(output, view, sweep_page(view))
        # A trial that sweep.stop ended early has done its part.
        ends = [0, *(EXIT_CODES[one.state] for one in view.trials if one.reason is not Reason.STOPPED_EARLY)]
        raise typer.Exit(EXIT_CODES[JobState.FAILED] if EXIT_CODES[JobState.FAILED] in ends else max(ends))
    first, last = view.trials[0].name, view.trials[-1].name
    jobs = first if first == last else f"{first} to {last}"
    count = len(view.trials)
    text = (
        f"{view.name} is submitted with {count} {'trial' if count == 1 else 'trials'}, {jobs}, id {view.id}."
    )
    cli.show(output, view, Text(f"{text} Follow it: headway sweep {view.name}"))


def too_large_for(client: Client, spec: JobSpec, *, end: str | None = None) -> str:
    """Return why a job can never start on the nodes in service; empty if it can, or if they are unknown.

    `end` is the command that ends it.
    """
    try:
        kinds = client.cluster().kinds
    except HeadwayError:
        return ""  # the job is submitted; the next round says why it waits
    wanted = spec.resources.devices
    slots_of: Counter[str] = Counter()
    for one in kinds:
        slots_of[one.device_kind] += one.in_service
    usable = {kind: count for kind, count in slots_of.items() if not wanted or kind in wanted}
    if spec.elastic.most_together(usable) >= spec.elastic.min:
        return ""
    there = ", ".join(f"{count} {kind}" for kind, count in slots_of.items() if count) or "none yet"
    kind = f" ({' or '.join(wanted)})" if wanted else ""
    slots = "1 slot" if spec.elastic.min == 1 else f"{spec.elastic.min} slots"
    return (
        f"needs at least {slots} {spec.elastic.kinds_text}{kind}, and the slots in service are: {there}. It waits until there are more. "
        f"To end it: {end or f'headway cancel {spec.name}'}"
    )


def _wait(cli: Cli, client: Client, job: JobView, output: Format) -> JobView:
    """Wait for the job and print its progress, to stderr when stdout is for a program."""
    console = cli.err if output is Format.JSON else cli.out
    try:
        last = wait(client, job.id, console)
    except KeyboardInterrupt:
        cli.err.print(f"\n{job.name} continues. To see it: headway ps. To end it: headway cancel {job.name}")
        raise typer.Exit(130) from None
    result = Text.assemble(f"{last.name} ", render.state_text(last.state), f": {last.message}")
    cli.show(output, last, result)
    return last
