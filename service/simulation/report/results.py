"""Result files of a simulation: figures, and rows of jobs, rounds and slots, beside the report.

`docs/simulation.md` names every column. Columns keep their names, and new ones are added at the end.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from service.domain.shared.arrays import FloatArray
from service.simulation.model.world import BadInput, Replay

SUMMARY, REPORT = "summary.json", "report.html"
_JOBS = (
    "policy,seed,id,application,requested_slots,submit_s,start_s,end_s,completion_s,"
    "served_slot_s,usd,changes,restarts,lost_s,fairness"
)
_ROUNDS = "policy,seed,time_s,queued,running,slots_used,slots_present,usd_per_h,goodput,decision_s,gap"
_SLOTS = "policy,seed,id,from_s,to_s,kind,slots,nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Replay with its figures by name (`metrics.summary`)."""

    replay: Replay
    figures: Mapping[str, float]

    @property
    def completion_s(self) -> FloatArray:
        """Seconds from submission to end (J,), infinite for jobs that did not end."""
        return np.asarray(self.replay.jobs.end_s - self.replay.jobs.submit_s)

    @property
    def fairness(self) -> FloatArray:
        """Completion time over that on a fixed, equal share of the cluster (J,). Above 1, a job had less than
        its share.
        """
        return np.asarray(self.completion_s / np.maximum(self.replay.jobs.alone_s, 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Replays of one simulation: policies in the order requested, each with its seeds. There is at least one replay.

    Attributes:
        name: Name of the simulation in the report's heading.
        runs: Replays in any order, of the same jobs on the same cluster.
    """

    name: str
    runs: tuple[ReplayResult, ...]

    @property
    def policies(self) -> dict[str, list[ReplayResult]]:
        """Replays by policy, in the order of the first of each; seeds ascending."""
        found: dict[str, list[ReplayResult]] = {}
        for one in self.runs:
            found.setdefault(one.replay.policy, []).append(one)
        return {name: sorted(of, key=lambda one: one.replay.world.seed) for name, of in found.items()}

    @property
    def rejected(self) -> tuple[tuple[str, str], ...]:
        """(id, reason) of jobs that can never run."""
        return self.runs[0].replay.world.rejected


def mean_figures(runs: Sequence[ReplayResult]) -> dict[str, float]:
    """Return the mean of each figure over seeds."""
    return {key: float(np.mean([one.figures[key] for one in runs])) for key in runs[0].figures}


def summary(results: Results) -> dict[str, Any]:
    """Return the content of `summary.json`. Infinite and NaN values are null, since JSON has neither."""
    world = results.runs[0].replay.world
    return {
        "name": results.name,
        "jobs": len(world.arrivals),
        "slots": {kind.name: kind.slots for kind in world.kinds},
        "policies": [
            {
                "policy": name,
                "mean": _finite(mean_figures(runs)),
                "seeds": [{"seed": one.replay.world.seed, **_finite(one.figures)} for one in runs],
            }
            for name, runs in results.policies.items()
        ],
        "rejected": [{"id": job, "reason": reason} for job, reason in results.rejected],
    }


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in figures.items()}


def check_folder(folder: Path) -> None:
    """Check that `write` may use the folder: it is new, empty, or holds the results of an earlier simulation.

    Raises:
        BadInput: The path is a file, or a folder with other content.
    """
    if folder.is_dir() and (not any(folder.iterdir()) or (folder / SUMMARY).is_file()):
        return
    if folder.exists():
        raise BadInput(
            f"{folder} exists and holds no results of a simulation: name another folder with --out"
        )


def write(folder: Path, results: Results, report: str) -> None:
    """Write all result files. Earlier files are replaced only when all new ones are complete; others stay.

    Raises:
        BadInput: The folder is not usable (`check_folder`).
        OSError: The folder cannot be written.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-", dir=folder) as unfinished:
        new = Path(unfinished)
        _write_csv(new / "jobs.csv", _JOBS, (row for one in results.runs for row in _job_rows(one)))
        _write_csv(new / "rounds.csv", _ROUNDS, (row for one in results.runs for row in _round_rows(one)))
        _write_csv(new / "slots.csv", _SLOTS, (row for one in results.runs for row in _slot_rows(one)))
        (new / REPORT).write_text(report, encoding="utf-8")
        (new / SUMMARY).write_text(
            json.dumps(summary(results), indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )
        for file in sorted(new.iterdir()):
            file.replace(folder / file.name)


def _write_csv(file: Path, header: str, rows: Iterable[Sequence[object]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(header.split(","))
        writer.writerows(rows)


def _job_rows(one: ReplayResult) -> Iterator[tuple[object, ...]]:
    jobs = one.replay.jobs
    columns = (
        jobs.id,
        jobs.application,
        jobs.requested_slots.tolist(),
        *(_seconds(times) for times in (jobs.submit_s, jobs.start_s, jobs.end_s, one.completion_s)),
        _seconds(jobs.served_slot_s),
        _figures(jobs.usd),
        jobs.changes.tolist(),
        jobs.restarts.tolist(),
        _seconds(jobs.lost_s),
        _figures(one.fairness),
    )
    return _keyed(one, columns)


def _round_rows(one: ReplayResult) -> Iterator[tuple[object, ...]]:
    rounds = one.replay.rounds
    counts = (rounds.queued, rounds.running, rounds.slots_used, rounds.slots_present)
    figures = (rounds.usd_per_h, rounds.goodput, rounds.decision_s, rounds.gap)
    columns = (
        _seconds(rounds.time_s),
        *(count.tolist() for count in counts),
        *(_figures(values) for values in figures),
    )
    return _keyed(one, columns)


def _slot_rows(one: ReplayResult) -> Iterator[tuple[object, ...]]:
    segments, table = one.replay.segments, one.replay.world.configurations
    column = segments.column
    columns = (
        [one.replay.jobs.id[job] for job in segments.job.tolist()],
        _seconds(segments.from_s),
        _seconds(segments.to_s),
        [table.kinds[kind] for kind in table.kind[column].tolist()],
        table.slots[column].tolist(),
        table.nodes[column].tolist(),
    )
    return _keyed(one, columns)


def _keyed(one: ReplayResult, columns: Iterable[Sequence[object]]) -> Iterator[tuple[object, ...]]:
    key = (one.replay.policy, one.replay.world.seed)
    return ((*key, *row) for row in zip(*columns, strict=True))


def _seconds(values: FloatArray) -> list[str]:
    """Return the values as text with milliseconds, empty for infinite ones."""
    return [
        f"{value:.3f}".rstrip("0").rstrip(".") if math.isfinite(value) else "" for value in values.tolist()
    ]


def _figures(values: FloatArray) -> list[str]:
    return [f"{value:.6g}" if math.isfinite(value) else "" for value in values.tolist()]
