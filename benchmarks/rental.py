"""Rental rules on recorded spot markets: completion times and dollars of a published stream of jobs.

    python -m benchmarks.rental --json
    python -m benchmarks.rental --quick

The traces and the stream are read from `HEADWAY_DATA`, else from `../shared/data` beside the repository. Each job of the stream
runs alone on machines with one T4 at the price of a g4dn.xlarge, with measured speeds. The spot capacity of a region is that of
a trace. A spot machine costs 30 % of one on demand. Zones of one region that were recorded together are one market. The stream
starts at several positions in each market, which are the same for all rules.

| rule | holds |
| --- | --- |
| `mixed` | the choice of `service.domain.rental.spot`: as many spot machines as pay off, an anchor, machines on demand by Uniform Progress; live resize |
| `on_demand` | the requested size of the job, on demand |
| `all_spot` | the same on spot; waits while fewer machines are available |
| `cheapest_first` | the same on the cheapest market at the time; restarts when that changes |
| `deepvm` | DeepVM's plan for the cost of the requested size on demand: workers on spot and remote nodes; waits while fewer are available |

Deadlines are 10 minutes plus 1.25, 1.5 or 2 times (in turn) the job's time on demand. `missed_deadlines` counts the deadlines
that `mixed` missed and on demand met. Costs and times are means over jobs and markets, in units of `on_demand`. `saving` compares
the sums of dollars, and `longer` the mean ratios of times. `front` is true if no other rule was both faster and cheaper than
`mixed` in any market; `dominated` lists the markets in which one was.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import benchmark_parser, pool, run_benchmark
from benchmarks.rental_market import LAUNCH_S, OptionalChange, Outcome, Prices, Rule, Scene, Work, Zones, play
from service.domain.policies.framework.policy import Configurations
from service.domain.rental import flopp
from service.domain.rental.catalogue import DEEPVM
from service.domain.rental.spot.uniform_progress import Sizing, SpotMarket, hold, pace_of, sizing
from service.simulation.inputs.streams import read_stream
from service.simulation.model.profiles import RESTART_S, data_folder, read_application
from service.simulation.model.spot import read_spot
from service.simulation.model.world import BadInput

QUICK_MARKETS = 1
WORKLOAD = "philly-1"
ON_DEMAND_USD_PER_H = 0.526
SPOT_SHARE = 0.3
PRICES = Prices(on_demand=ON_DEMAND_USD_PER_H, spot=ON_DEMAND_USD_PER_H * SPOT_SHARE)
MOST = 16
"""Largest measured number of machines with one GPU each."""
DEADLINES = (1.25, 1.5, 2.0)
SPARE_S = 600.0
ENTRIES = 2
"""Start positions in each market."""


class OnDemand:
    """The requested size, on demand."""

    name = "on_demand"
    knows_market = True

    def wish(self, scene: Scene) -> OptionalChange:
        """Hold the requested size on demand."""
        return OptionalChange(on_demand=scene.work.full, spot=0, gang=scene.work.full)

    def most(self, work: Work) -> int:
        """Return the requested size."""
        return work.full


class AllSpot(OnDemand):
    """The requested size on spot, or nothing."""

    name = "all_spot"

    def wish(self, scene: Scene) -> OptionalChange:
        """Hold the requested size on spot while it is available."""
        full = scene.work.full
        return OptionalChange(on_demand=0, spot=full if scene.spot_available >= full else 0, gang=full)


class CheapestFirst(OnDemand):
    """The requested size on the cheapest market at the time."""

    name = "cheapest_first"

    def wish(self, scene: Scene) -> OptionalChange:
        """Hold spot machines if enough are available. Machines on demand train until the spot machines are ready."""
        full = scene.work.full
        if scene.spot_available < full:
            return OptionalChange(on_demand=full, spot=0, gang=full)
        waits = full if scene.on_demand_ready >= full and scene.spot_ready < full else 0
        return OptionalChange(on_demand=waits, spot=full, gang=full)


class DeepVm(OnDemand):
    """The plan with the most FLOP per dollar, for at most the cost of the requested size on demand."""

    name = "deepvm"

    def wish(self, scene: Scene) -> OptionalChange:
        """Hold the plan's workers on spot while enough are available, and its remote nodes."""
        workers, beside = _deepvm_plan(scene.work.full)
        enough = scene.spot_available >= workers
        return OptionalChange(
            on_demand=0,
            spot=workers if enough else 0,
            gang=workers,
            extra_usd_per_h=beside,
        )

    def most(self, work: Work) -> int:
        """Return the number of workers."""
        return _deepvm_plan(work.full)[0]


class Mixed:
    """The rule of the service."""

    name = "mixed"
    knows_market = False

    def wish(self, scene: Scene) -> OptionalChange:
        """Hold the machines that the service would."""
        work, size = scene.work, self._sizing(scene.work)
        pace = pace_of(
            work_s=1 / work.speed[work.full - 1],
            done=scene.done,
            elapsed_s=scene.elapsed_s,
            deadline_s=work.deadline_s,
            change_s=LAUNCH_S + work.restart_s,
        )
        market = SpotMarket(
            spot_ready=scene.spot_ready,
            spot_available=scene.spot_requestable,
            on_demand_ready=scene.on_demand_ready,
            filled=scene.on_demand_held > size.anchors,
        )
        held = hold(pace, size, market)
        return OptionalChange(on_demand=held.on_demand, spot=held.spot)

    def most(self, work: Work) -> int:
        """Return the largest size."""
        return self._sizing(work).most

    def _sizing(self, work: Work) -> Sizing:
        return _sizing_of(tuple(work.speed), work.full)


@lru_cache(maxsize=256)
def _sizing_of(speed: tuple[float, ...], full: int) -> Sizing:
    return sizing(speed, full=full, spot_price=SPOT_SHARE)


@lru_cache(maxsize=64)
def _deepvm_plan(full: int) -> tuple[int, float]:
    """Return the number of workers, at most `MOST`, and the dollars per hour of the remote nodes."""
    offers = [one for one in DEEPVM if one.device_kind in {"t4", "cpu"}]
    for _, plan in flopp.plans(offers, max_usd_per_h=full * ON_DEMAND_USD_PER_H, count=3):
        beside = sum(one.usd_per_h for one in plan.groups[1:])
        return min(plan.spot_machines, MOST), beside
    return full, 0.0


RULES: tuple[Rule, ...] = (Mixed(), OnDemand(), AllSpot(), CheapestFirst(), DeepVm())


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one market by rule: dollars of all jobs, mean times, mean ratios of times, and missed deadlines."""

    market: str
    usd: Mapping[str, float]
    time_s: Mapping[str, float]
    longer: Mapping[str, float]
    missed: Mapping[str, int]


def main() -> None:
    parser = benchmark_parser(__doc__, quick="one market at one position")
    parser.add_argument("--processes", type=int, default=2, help="markets at a time; default: %(default)s")
    arguments = parser.parse_args()
    rows = []
    markets = markets_of(data_folder() / "spot")
    with pool(arguments.processes) as workers:
        entries = 1 if arguments.quick else ENTRIES
        markets = markets[:QUICK_MARKETS] if arguments.quick else markets
        for row in workers.map(row_of, markets, [entries] * len(markets)):
            rows.append(row)
            if not arguments.json:
                print(_line(row), flush=True)
    result = result_of(rows)
    print(json.dumps(result) if arguments.json else json.dumps({**result, "markets": len(rows)}, indent=2))


def markets_of(folder: Path) -> list[Zones]:
    """Return the recorded markets. Zones of one region that were recorded together are one market."""
    files: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*/*/*/*.json")):
        match = re.fullmatch(r"(?P<region>.+?)-?[a-z]_(?P<kind>.+)", file.stem)
        if match is None:
            raise BadInput(f"{file}: its name is not of the form ZONE_KIND_COUNT.json")
        key = "/".join((*file.parent.relative_to(folder).parts, match["region"], match["kind"]))
        files.setdefault(key, []).append(file)
    return [_zones(name, of_market) for name, of_market in files.items()]


def _zones(name: str, files: Sequence[Path]) -> Zones:
    traces = [read_spot(file) for file in files]
    ticks = min(len(one.available) for one in traces)
    counts = np.array([one.available[:ticks] for one in traces], dtype=np.int64)
    return Zones(name, traces[0].gap_s, counts)


@lru_cache(maxsize=1)
def jobs() -> tuple[Work, ...]:
    """Return the jobs of the stream with measured speeds.

    Raises:
        BadInput: the measured data are missing.
    """
    data = data_folder()
    machines = np.arange(1, MOST + 1)
    configurations = Configurations(
        kinds=("t4",),
        kind=np.zeros(MOST, dtype=np.int64),
        slots=machines,
        nodes=machines,
        usd_per_h=np.zeros(MOST),
    )
    speeds: dict[str, tuple[float, ...]] = {}
    for name in RESTART_S:
        app = read_application(data / "profiles" / name, configurations)
        phases = np.diff(app.boundaries)[:, None]
        with np.errstate(divide="ignore"):
            # More machines never slow a job down, because it can leave some of them idle.
            whole_s = np.minimum.accumulate((phases / app.goodput).sum(axis=0))
        speeds[name] = tuple((1 / whole_s).tolist())
    found = []
    stream = read_stream(data / "workloads" / f"{WORKLOAD}.csv")
    for one, slack in zip(stream, cycle(DEADLINES), strict=False):
        name = one.application or ""
        work = Work(name, speeds[name], min(one.slots, MOST), RESTART_S[name], one.submit_s, 0.0)
        found.append(dataclasses.replace(work, deadline_s=work.on_demand_s * slack + SPARE_S))
    return tuple(found)


def row_of(zones: Zones, entries: int) -> Row:
    """Run every job with every rule in one market."""
    length_s = zones.gap_s * zones.counts.shape[1]
    offsets = [length_s * index / entries for index in range(entries)]
    played = {
        rule.name: [play(work, rule, zones, PRICES, offset) for offset in offsets for work in jobs()]
        for rule in RULES
    }
    on_demand = played["on_demand"]
    return Row(
        market=zones.name,
        usd={name: sum(one.usd for one in found) for name, found in played.items()},
        time_s={name: float(np.mean([one.time_s for one in found])) for name, found in played.items()},
        longer={name: float(np.mean([*_ratios(found, on_demand)])) for name, found in played.items()},
        missed={
            name: sum(one.missed and not safe.missed for one, safe in zip(found, on_demand, strict=True))
            for name, found in played.items()
        },
    )


def _ratios(found: Sequence[Outcome], on_demand: Sequence[Outcome]) -> Iterator[float]:
    for one, safe in zip(found, on_demand, strict=True):
        yield one.time_s / safe.time_s


def result_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures over all markets."""
    names = [rule.name for rule in RULES]
    usd = {name: sum(row.usd[name] for row in rows) for name in names}
    time_s = {name: float(np.mean([row.time_s[name] for row in rows])) for name in names}
    longer = {name: float(np.mean([row.longer[name] for row in rows])) for name in names}
    dominated = [row.market for row in rows if beaten_by(row)]
    return {
        "mixed_cost": usd["mixed"],
        "on_demand_cost": usd["on_demand"],
        "mixed_time": time_s["mixed"],
        "on_demand_time": time_s["on_demand"],
        "missed_deadlines": sum(row.missed["mixed"] for row in rows),
        "saving": 1 - usd["mixed"] / usd["on_demand"],
        "longer": longer["mixed"] - 1,
        "front": not dominated,
        "dominated": dominated,
        "cost_by_rule": usd,
        "time_by_rule": time_s,
        "time_ratio_by_rule": longer,
        "missed_by_rule": {name: sum(row.missed[name] for row in rows) for name in names},
        "by_market": {
            row.market: {
                name: {"cost": row.usd[name] / row.usd["on_demand"], "time_ratio": row.longer[name]}
                for name in names
            }
            for row in rows
        },
    }


def beaten_by(row: Row) -> list[str]:
    """Return the rules that dominated the mixed rule: no slower and no dearer, and better in time or cost."""
    usd, time = row.usd, row.longer
    return [
        name
        for name in usd
        if name != "mixed"
        and usd[name] <= usd["mixed"]
        and time[name] <= time["mixed"]
        and (usd[name], time[name]) != (usd["mixed"], time["mixed"])
    ]


def _line(row: Row) -> str:
    cells = (
        f"{name} ${row.usd[name]:.0f} x{row.longer[name]:.3f} missed {row.missed[name]}" for name in row.usd
    )
    return f"{row.market:52} " + "; ".join(cells) + f"; beaten by {beaten_by(row) or 'none'}"


if __name__ == "__main__":
    run_benchmark(main)
