"""Progress of a job until it ends: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from headway.cli.render import jobs as render
from headway.client.client import Client
from headway.contract.values.text import brief
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView

EXIT_CODES = {JobState.SUCCEEDED: 0, JobState.FAILED: 100, JobState.CANCELLED: 103}
"""Exit codes of `headway submit --wait`."""

_PLAIN_STEP = 0.1


_Show: TypeAlias = Callable[[JobView], None]
"""Function that shows the present state of a job."""


def wait(client: Client, job: str, console: Console) -> JobView:
    """Show a job until it ends, and return its last view. The caller prints the message of that view.

    Raises:
        ServiceUnavailableError: the service is away for minutes. The job continues.
    """
    with _live(console) if console.is_terminal else _plain(console) as show:
        for view in client.watch(job):
            show(view)
    return view


@contextmanager
def _live(console: Console) -> Iterator[_Show]:
    names = ("job", "state", "size", "progress", "speed", "metrics")
    fields = {name: TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in names}
    columns = [SpinnerColumn(), fields["job"], fields["state"], fields["size"], BarColumn(bar_width=30)]
    columns += [fields["progress"], fields["speed"], fields["metrics"]]
    bar = Progress(*columns, console=console)
    blank: dict[str, Any] = dict.fromkeys(names, "")
    task = bar.add_task("", total=None, **blank)
    printed = ""
    with Live(bar, console=console, transient=True, refresh_per_second=5) as live:

        def show(job: JobView) -> None:
            nonlocal printed
            if job.message != printed and job.state not in TERMINAL_STATES:
                printed = job.message
                live.console.print(render.state_text(job.state), brief(printed), soft_wrap=True)
            done = job.progress
            speed = f"{render.rate(done.samples_per_s)}/s, {render.eta(done)}" if done.samples_per_s else ""
            bar.update(
                task,
                total=done.work_total,
                completed=done.work_done,
                job=job.name,
                state=job.state.value,
                size=f"{render.size(job)} slots",
                progress=render.progress(done),
                speed=speed,
                metrics=render.metrics(done),
            )

        yield show


@contextmanager
def _plain(console: Console) -> Iterator[_Show]:
    """Print a line whenever the state, the size, the message, the epoch or the tenth of the work changes."""
    last: object = None

    def show(job: JobView) -> None:
        nonlocal last
        done = job.progress
        tenths = int((done.work_share or 0.0) / _PLAIN_STEP)
        key = (job.state, job.size, job.message, done.epoch, tenths)
        if key != last:
            last = key
            speed = f"{render.rate(done.samples_per_s)} {done.unit}/s" if done.samples_per_s else ""
            facts = (
                job.name,
                job.state,
                render.size(job),
                render.progress(done),
                speed,
                render.metrics(done),
            )
            why = "" if job.state in TERMINAL_STATES else brief(job.message)
            console.print("  ".join(filter(None, (*facts, why))), soft_wrap=True)

    yield show
