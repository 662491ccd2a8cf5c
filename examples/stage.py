"""Shared parts of the demonstrations: jobs, waiting with a time limit, checks, start and end."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headway.client.client import Client
from headway.contract.views.jobs import EventView, JobState, JobView

EXAMPLES = Path(__file__).parent


class BrokenPromise(Exception):
    """Raised when the demonstration cannot continue, because a step failed or took too long."""


@dataclass(kw_only=True)
class Stage:
    """State of a demonstration. `jobs` are ids by name; `checks` are promises, each with True if it was kept."""

    client: Client
    console: Console
    began_s: float
    patience_s: float
    jobs: dict[str, str] = field(default_factory=dict)
    checks: list[tuple[str, bool]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Print a step with its time."""
        self.console.print(f"[dim]{time.monotonic() - self.began_s:6.1f} s[/]  {text}")

    def check(self, promise: str, *, kept: bool) -> None:
        """Record the result of a check."""
        self.checks.append((promise, kept))

    @property
    def kept(self) -> bool:
        """True if every promise was kept."""
        return all(kept for _, kept in self.checks)

    def show_promises(self) -> None:
        """Print the result of each check."""
        for promise, kept in self.checks:
            self.console.print(f"{'[green]kept  [/]' if kept else '[red]BROKEN[/]'}  {promise}")

    def job(self, name: str) -> JobView:
        """Return the present state of a job."""
        return self.client.job(self.jobs[name])

    def events(self, name: str, *kinds: str) -> list[EventView]:
        """Return the events of a job that have one of these kinds."""
        return [event for event in self.client.events(self.jobs[name]) if event.kind in kinds]

    def until(self, what: str, condition: Callable[[], bool], patience_s: float | None = None) -> float:
        """Wait until the condition is true, and return the seconds that this took.

        Raises:
            BrokenPromise: it is not true within `patience_s`, or a job failed.
        """
        began, most_s = time.monotonic(), patience_s or self.patience_s
        while not condition():
            if time.monotonic() - began > most_s:
                raise BrokenPromise(f"gave up after {most_s:.0f} s: {what}")
            for name in self.jobs:
                if (job := self.job(name)).state is JobState.FAILED:
                    raise BrokenPromise(f"{name} failed: {job.message}")
            time.sleep(0.1)
        return time.monotonic() - began

    def trains_on(self, name: str) -> None:
        """Wait until the job has trained further."""
        samples = self.job(name).progress.samples
        self.until(f"{name} trains", lambda: self.job(name).progress.samples > samples)


def table(title: str, *columns: str) -> Table:
    """Return an empty table with these columns."""
    made = Table(title=title, title_style="bold", title_justify="left")
    for column in columns:
        made.add_column(column)
    return made


def arguments_of(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a demonstration's command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="keep the data folder, with all logs")
    return parser


def perform(console: Console, act: Callable[[], bool]) -> bool:
    """Run the demonstration, and return True if every promise was kept. SIGTERM stops all started processes too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `with` blocks stop their processes
    try:
        return act()
    except BrokenPromise as error:
        console.print(f"[red]BROKEN[/]  {error}")
        return False


def leave(console: Console, data: Path, *, kept: bool, keep_data: bool) -> int:
    """Remove the data folder, unless a promise was broken or `keep_data` is set. Return the exit code."""
    if keep_data or not kept:
        console.print(f"Data and logs are in {data}")
    else:
        shutil.rmtree(data, ignore_errors=True)
    return int(not kept)
