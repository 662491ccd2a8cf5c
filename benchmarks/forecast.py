"""Error of the forecast after a tenth of a job's work, and cost of the search for its size.

    python -m benchmarks.forecast --json
    python -m benchmarks.forecast --quick

Jobs run one after another on a local agent of two slots: three scripts that differ in batch, compute and communication, each
on one slot and on two, and each about `--seconds` long on one slot. Their steps are fixed arithmetic, so that only the
machine causes differences. With `--paced` the steps wait for as long as the arithmetic takes on an idle machine; use it on a
machine with other load. The service stores its forecast when a tenth of the work is done, and scores it at the end.

`time_median_error`, `cost_median_error`, `time_worst_error`: |forecast / measured - 1| of the remaining time until the end of
the job's processes, and of its cost at a dollar per slot hour. `p90_kept`: share of jobs that took no longer than their P90.

Then each application is submitted again under another name with one or two slots and `goal.search`, once for time and once
for cost. The following figures are those of the worst search:

`search_choice`: relative excess of time (cost) on the chosen size over the better of the two sizes measured before.
`search_overhead`: relative excess of time (cost) of the whole job over a run on the chosen size.
`search_overhead_counted`: the same according to the service.
`noise`: median relative change of speed between the first and the second half of a run. It shows how far two runs of the
same job differ on this machine.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.forecasts import KeptForecast, SearchPhase
from headway.contract.views.jobs import TERMINAL_STATES, EventView, JobState, JobView
from headway.local.stack import LocalStack

SCRIPT = Path(__file__).parent / "scripts" / "computing.py"
AFTER = 0.1
QUICK_S = 6.0
SIZES = (1, 2)
USD_PER_SLOT_H = 1.0
SIDE = 96  # as in the script
_POLL_S = 0.25
_IDLE_PRODUCT_S = 1e-4
"""Seconds of one product with `--paced`."""
_PATIENCE = 8.0
"""Time limit of a job, as a multiple of its length on one slot."""


@dataclass(frozen=True, slots=True)
class App:
    """Arguments of the script: samples of a step, matrix products per sample, and width of the network's matrix."""

    name: str
    batch: int
    repeats: int
    width: int


APPS = (
    App("even", batch=32, repeats=20, width=256),
    App("chatty", batch=16, repeats=20, width=1024),
    App("small", batch=8, repeats=60, width=512),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Job that succeeded, measured from its first step to its end.

    `slots` is its last size, and `drift` the speed of its second half over that of its first half.
    """

    app: str
    slots: int
    time_s: float
    cost_usd: float
    drift: float
    view: JobView


def product_s() -> float:
    """Return the seconds of one matrix product of the script on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    some, turn = torch.randn(32, SIDE, SIDE), torch.randn(SIDE, SIDE)
    taken = []
    for _ in range(30):
        began_s = time.perf_counter()
        some @ turn
        taken.append((time.perf_counter() - began_s) / len(some))
    torch.set_num_threads(threads)
    return statistics.median(taken)


class Bench:
    """Jobs on a local stack, one at a time, each of about `seconds` on one slot."""

    def __init__(self, client: Client, seconds: float, *, paced: bool) -> None:
        self._client = client
        self._seconds = seconds
        self._product_s = _IDLE_PRODUCT_S if paced else product_s()
        self._paced = paced

    def run(self, app: App, name: str, *, least: int, most: int, goal: Mapping[str, Any]) -> Ran:
        """Submit the app with `least` to `most` slots, and wait for its end.

        Raises:
            RuntimeError: the job does not succeed in time.
        """
        sample_s = self._product_s * app.repeats
        steps = max(60, round(self._seconds / (sample_s * app.batch)))
        spec = {
            "name": name,
            "workdir": str(SCRIPT.parent),
            "run": f"python {SCRIPT.name} {steps * app.batch} {app.batch} {app.repeats} {app.width} "
            f"{sample_s if self._paced else 0.0}",
            "elastic": {"min": least, "max": most},
            "goal": goal,
            "checkpoint": {"every": "1h"},
        }
        job = self._client.submit(JobSpec.model_validate(spec)).id
        progress: list[tuple[float, int]] = []
        give_up_s = time.monotonic() + _PATIENCE * self._seconds + 60
        while (view := self._client.job(job)).state not in TERMINAL_STATES:
            progress.append((time.monotonic(), view.progress.samples))
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"{name} does not end; it is {view.state}: {view.message}")
            time.sleep(_POLL_S)
        if view.state is not JobState.SUCCEEDED or view.finished_at is None:
            raise RuntimeError(f"{name} ended {view.state}: {view.message}")
        sizes = sizes_of(self._client.events(job), least)
        ends = [*(at for at, _ in sizes[1:]), view.finished_at]
        slot_s = sum((end - at).total_seconds() * size for (at, size), end in zip(sizes, ends, strict=True))
        return Ran(
            app=app.name,
            slots=sizes[-1][1],
            time_s=(view.finished_at - sizes[0][0]).total_seconds(),
            cost_usd=slot_s * USD_PER_SLOT_H / 3600.0,
            drift=drift_of(progress),
            view=view,
        )


def sizes_of(events: Iterable[EventView], first: int) -> list[tuple[datetime, int]]:
    """Return the times at which training began on `first` slots and continued on other sizes, each with its size."""
    sizes: list[tuple[datetime, int]] = []
    for event in events:
        if event.kind == "first_step" and not sizes:
            sizes.append((event.at, first))
        if event.kind == "switch":
            sizes.append((event.at, int(event.data["to"])))
    return sizes


def drift_of(progress: Sequence[tuple[float, int]]) -> float:
    """Return the speed of the second half of pairs (seconds, samples) over that of the first; 1 for too few pairs."""
    trained = [one for one in progress if one[1] > 0]
    if len(trained) < 3:
        return 1.0
    first, middle, last = trained[0], trained[len(trained) // 2], trained[-1]
    speeds = [
        (after[1] - before[1]) / (after[0] - before[0]) for before, after in ((first, middle), (middle, last))
    ]
    return speeds[1] / speeds[0] if speeds[0] > 0 else 1.0


def errors_of(grid: Sequence[Ran]) -> dict[str, float]:
    """Return the errors of the forecasts after a tenth of the work.

    Raises:
        RuntimeError: a job has no forecast.
    """
    kept = [kept_of(ran) for ran in grid]
    time_errors = [abs(one.time_ratio - 1.0) for one in kept if one.time_ratio is not None]
    cost_errors = [abs(one.cost_ratio - 1.0) for one in kept if one.cost_ratio is not None]
    return {
        "time_median_error": statistics.median(time_errors),
        "cost_median_error": statistics.median(cost_errors),
        "time_worst_error": max(time_errors),
        "cost_worst_error": max(cost_errors),
        "p90_kept": statistics.mean((one.took_s or math.inf) <= one.time_p90_s for one in kept),
        "jobs": len(time_errors),
    }


def kept_of(ran: Ran) -> KeptForecast:
    """Return the forecast after a tenth of the job's work.

    Raises:
        RuntimeError: the job has none.
    """
    for one in ran.view.progress.forecasts:
        if one.share == AFTER and one.took_s is not None:
            return one
    raise RuntimeError(f"{ran.view.name} has no forecast after a tenth of its work")


def search_of(grid: Sequence[Ran], searched: Sequence[tuple[str, Ran]]) -> dict[str, float]:
    """Return the figures of the worst search, compared with the jobs of the same app that had one size throughout."""
    overheads, counted, choices = [], [], []
    for objective, ran in searched:
        figure = {
            one.slots: one.time_s if objective == "time" else one.cost_usd
            for one in grid
            if one.app == ran.app
        }
        here = ran.time_s if objective == "time" else ran.cost_usd
        overheads.append(here / figure[ran.slots] - 1.0)
        choices.append(figure[ran.slots] / min(figure.values()) - 1.0)
        found = ran.view.progress.search
        if found is None or found.phase is not SearchPhase.SETTLED:
            raise RuntimeError(f"{ran.view.name} has not settled: {found}")
        counted.append(found.overhead_share or 0.0)
    return {
        "search_overhead": max(overheads),
        "search_overhead_counted": max(counted),
        "search_choice": max(choices),
        "searches": len(searched),
    }


def measure(bench: Bench, apps: Sequence[App], objectives: Sequence[str]) -> dict[str, float]:
    """Run the apps on each size and with a search for each objective, and return all figures."""
    grid, searched = [], []
    for app in apps:
        for size in SIZES:
            grid.append(bench.run(app, f"{app.name}-{size}", least=size, most=size, goal={}))
            _print_run(grid[-1])
    for app in apps:
        for objective in objectives:
            goal = {"objective": objective, "search": "full"}
            # The other name gives it its own job class, so that the service knows nothing of the earlier runs.
            name = f"{app.name}-for-{objective}"
            searched.append((objective, bench.run(app, name, least=SIZES[0], most=SIZES[-1], goal=goal)))
            _print_run(searched[-1][1])
    noise = statistics.median(abs(one.drift - 1.0) for one in grid)
    found = {**errors_of(grid), **search_of(grid, searched), "noise": noise}
    return {name: round(value, 4) for name, value in found.items()}


def _print_run(ran: Ran) -> None:
    """Print the course of a job to standard error."""
    text = (
        f"{ran.view.name}: {ran.slots} slots, {ran.time_s:.1f} s, ${ran.cost_usd:.4f}, drift {ran.drift:.3f}"
    )
    for one in ran.view.progress.forecasts:
        text += f"; at {one.share:.0%} {one.time_s:.1f} s (P90 {one.time_p90_s:.1f}), was {one.took_s:.1f} s"
    if ran.view.progress.search is not None:
        text += f"; {ran.view.progress.search.reason}, {ran.view.progress.search.overhead_s:.1f} s lost"
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = benchmark_parser(__doc__, quick="one short application")
    parser.add_argument("--paced", action="store_true", help="wait instead of computing")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="length of a job on one slot; default: %(default)s"
    )
    arguments = parser.parse_args()
    seconds = QUICK_S if arguments.quick else arguments.seconds
    with (
        temporary_folder() as folder,
        LocalStack(folder, agents=1, slots=SIZES[-1], prices=f"cpu={USD_PER_SLOT_H}") as stack,
        stack.client() as client,
    ):
        bench = Bench(client, seconds, paced=arguments.paced)
        result = measure(bench, *((APPS[:1], ("time",)) if arguments.quick else (APPS, ("time", "cost"))))
    show(result, arguments)


if __name__ == "__main__":
    run_benchmark(main)
