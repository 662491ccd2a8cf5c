"""Error of the predicted time to a progress target, and overhead of a partial search over slots and batches.

    python -m benchmarks.search --json
    python -m benchmarks.search --quick

Three real jobs run one after another on a local agent of two slots. They differ in the time of a sample, the time of a step
and the noise of their gradients. Each may have one or two slots and three batches, and ends at a progress of about `--seconds`
on its own batch and one slot. It runs twice: first with `goal.search: partial`, then with `goal.search: none`, which uses
the stored run of its class. All samples and steps wait for fixed times, so other load of the machine has little effect.

`median_error`: median of |predicted / measured - 1| of the time to the target, of all forecasts: that of the second run at its
submit, and those of both runs after a tenth of the work.
`overhead`: excess of the time of the first run over that of the second, as a share of the second; median of the jobs.
`overhead_counted`: largest overhead as the service counts it.
`worst_error`, `forecasts`, `jobs`: largest error, and numbers of forecasts and jobs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.forecasts import SearchPhase
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView
from headway.local.stack import LocalStack

SCRIPT = Path(__file__).parent / "scripts" / "searching.py"
SLOTS = 2
DOUBLINGS = 2
"""Doublings of the batch that each job may use: three batches."""
QUICK_S = 12.0
_POLL_S = 0.25
_PATIENCE = 8.0
"""Time limit of a job, as a multiple of its length on one slot."""


@dataclass(frozen=True, slots=True)
class App:
    """Batch of a job, seconds of a sample and of a step, and the standard deviation of the noise of its labels."""

    name: str
    batch: int
    sample_s: float
    step_s: float
    noise: float


APPS = (
    App("even", batch=16, sample_s=2e-3, step_s=5e-3, noise=1.0),
    App("latent", batch=16, sample_s=5e-4, step_s=2e-2, noise=10.0),
    App("noisy", batch=32, sample_s=1e-3, step_s=1e-2, noise=30.0),
)


def run(client: Client, app: App, number: int, search: str, seconds: float) -> JobView:
    """Submit the app with this search, and return the job when it has succeeded.

    Raises:
        RuntimeError: the job does not succeed in time.
    """
    steps = max(80, round(seconds / (app.step_s + app.batch * app.sample_s)))
    most = app.batch << DOUBLINGS
    sizes = f"{app.batch} {most}"
    waits = f"{app.sample_s} {app.step_s} {app.noise}"
    spec = {
        "name": f"{app.name}-{number}",
        "workdir": str(SCRIPT.parent),
        "run": f"python {SCRIPT.name} 10 {steps * app.batch // 10} {sizes} {waits}",
        "elastic": {"min": 1, "max": SLOTS},
        "batch": {"policy": "adaptive", "global": app.batch, "max_global": most, "lr_rule": "adascale"},
        "goal": {"search": search, "objective": "time"},
        "checkpoint": {"every": "1h"},
    }
    job = client.submit(JobSpec.model_validate(spec)).id
    give_up_s = time.monotonic() + _PATIENCE * seconds + 60
    while (view := client.job(job)).state not in TERMINAL_STATES:
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"{view.name} does not end; it is {view.state}: {view.message}")
        time.sleep(_POLL_S)
    if view.state is not JobState.SUCCEEDED:
        raise RuntimeError(f"{view.name} ended {view.state}: {view.message}")
    _print_run(client, view)
    return view


def time_s(client: Client, view: JobView) -> float:
    """Return the seconds of a job from its first step to its end."""
    begun = next(event.at for event in client.events(view.id) if event.kind == "first_step")
    assert view.finished_at is not None
    return (view.finished_at - begun).total_seconds()


def errors_of(views: Sequence[JobView]) -> list[float]:
    """Return the relative errors of the time in all forecasts of these jobs."""
    ratios = [one.time_ratio for view in views for one in view.progress.forecasts]
    return [abs(ratio - 1.0) for ratio in ratios if ratio is not None]


def measure(client: Client, apps: Sequence[App], seconds: float) -> dict[str, float]:
    """Run every app with a search and again without visits, and return all figures."""
    views, overheads, counted = [], [], []
    for app in apps:
        searched = run(client, app, 1, "partial", seconds)
        stored = run(client, app, 2, "none", seconds)
        found = searched.progress.search
        if found is None or found.phase is SearchPhase.OFF:
            raise RuntimeError(f"{searched.name} did not search: {found}")
        overheads.append(time_s(client, searched) / time_s(client, stored) - 1.0)
        counted.append(found.overhead_share or 0.0)
        views += [searched, stored]
    errors = errors_of(views)
    if not errors:
        raise RuntimeError("no job has a forecast")
    figures = {
        "median_error": statistics.median(errors),
        "overhead": statistics.median(overheads),
        "overhead_counted": max(counted),
        "worst_error": max(errors),
        "forecasts": len(errors),
        "jobs": len(views),
    }
    return {name: round(value, 4) for name, value in figures.items()}


def _print_run(client: Client, view: JobView) -> None:
    """Print the course of a job to standard error."""
    found = view.progress.search
    text = f"{view.name}: {time_s(client, view):.1f} s"
    if found is not None:
        text += f", {found.place}, batch {found.global_batch}, {found.visited} of {found.visits} visits"
        text += f", {found.shown} shown, {found.skipped} skipped; {found.reason}"
    for one in view.progress.forecasts:
        text += f"; at {one.share:.0%} {one.time_s:.1f} s, was {one.took_s or 0.0:.1f} s"
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = benchmark_parser(__doc__, quick="one short job")
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="length of a job on one slot; default: %(default)s"
    )
    arguments = parser.parse_args()
    apps, seconds = (APPS[:1], QUICK_S) if arguments.quick else (APPS, arguments.seconds)
    with (
        temporary_folder() as folder,
        LocalStack(folder, agents=1, slots=SLOTS) as stack,
        stack.client() as client,
    ):
        result = measure(client, apps, seconds)
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
