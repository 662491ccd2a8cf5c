"""What an application really does on each configuration, from its measured profiles.

A folder of an application holds `placements-<kind>.csv` and `scalability-<kind>.csv` (step times by shape and batch of
a slot) and `validation-<batch>.csv` (progress and iterations of every epoch at a global batch).

Step times between two measured batches of a slot, and between two measured numbers of whole nodes, are interpolated
linearly; a batch of a slot that was not measured on both is not used. With accumulation, only the last of the passes
synchronises. Progress per step at a batch is what was measured at that batch in that epoch, interpolated between
batches on logarithmic axes; the smallest batch is the reference.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.domain.arrays import FloatArray
from service.domain.policies.policy import Configurations

RESTART_S = {
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "bert": 120.0,
    "yolov3": 80.0,
    "imagenet": 250.0,
    "ncf": 15.0,
}
"""Measured seconds of checkpoint and restart, by application."""
EPOCHS = {"cifar10": 100, "deepspeech2": 80, "bert": 2, "yolov3": 50, "imagenet": 90, "ncf": 10}
"""Epochs to completion."""
BATCHES = 60
"""Global batches that are tried for each configuration, geometric from the reference to the largest measured."""

Shape = tuple[int, int]
"""Nodes, slots."""


class NoData(Exception):
    """The measured data are not where they were looked for."""


@dataclass(frozen=True, slots=True)
class Application:
    """How a kind of job progresses (`E` epochs, `C` configurations).

    `boundaries` (E + 1,): reference samples at which its epochs begin, and its end. `goodput` (E, C): reference samples
    per second with the best batch, 0 where it cannot run. `restart_s`: a checkpoint, a start and a load.
    """

    name: str
    boundaries: FloatArray
    goodput: FloatArray
    restart_s: float


@dataclass(frozen=True, slots=True)
class _Curve:
    """Step and synchronisation seconds by batch of a slot, of one shape."""

    local_batch: FloatArray
    step_s: FloatArray
    sync_s: FloatArray


def data_folder() -> Path:
    """Where the measured data are: `HEADWAY_DATA`, else `../shared/data` beside the repository. Raises NoData."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("HEADWAY_DATA", beside))
    if not (folder / "profiles").is_dir():
        raise NoData(
            f"no measured data in {folder}: set HEADWAY_DATA to a folder with profiles/ and workloads/"
        )
    return folder


def read_application(folder: Path, configurations: Configurations) -> Application:
    """The application whose profiles are in `folder`, on the given configurations. Raises NoData."""
    name = folder.name
    batches, progress, iterations = _read_validation(folder, EPOCHS[name])
    tried = np.geomspace(batches[0], batches[-1], BATCHES)
    gain = _interpolated(batches, np.diff(progress, prepend=0.0) / np.diff(iterations, prepend=0.0), tried)
    curves = {kind: _read_curves(folder, kind) for kind in configurations.kinds}
    step_s = np.stack(
        [
            _step_s(_curve(curves[configurations.kinds[kind]], (int(nodes), int(slots))), int(slots), tried)
            for kind, slots, nodes in zip(
                configurations.kind, configurations.slots, configurations.nodes, strict=True
            )
        ]
    )
    # Reference samples per second: (E, 1, M) progress of a step over (C, M) seconds of it.
    goodput = (batches[0] * gain.T[:, None, :] / step_s).max(axis=2)
    boundaries = np.concatenate(([0.0], batches[0] * progress[0]))
    return Application(name, boundaries, goodput, RESTART_S[name])


def _read_validation(folder: Path, epochs: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Global batches (B,), and progress and iterations (B, epochs) at the end of each epoch."""
    files = sorted(folder.glob("validation-*.csv"), key=_batch_of)
    if not files:
        raise NoData(f"{folder} has no validation-*.csv")
    tables = [_read(file) for file in files]
    progress = np.stack([table["progress"][:epochs] for table in tables])
    iterations = np.stack([table["iteration"][:epochs] for table in tables])
    return np.array([_batch_of(file) for file in files], dtype=np.float64), progress, iterations


def _batch_of(file: Path) -> int:
    return int(file.stem.removeprefix("validation-"))


def _interpolated(batches: FloatArray, gain: FloatArray, tried: FloatArray) -> FloatArray:
    """Progress of a step (M, E) at the batches that are tried, from that (B, E) at the measured ones."""
    logs = np.log(gain)
    columns = [np.interp(np.log(tried), np.log(batches), column) for column in logs.T]
    return np.asarray(np.exp(np.stack(columns, axis=1)))


def _read_curves(folder: Path, kind: str) -> dict[Shape, _Curve]:
    """Measured curves of shapes with as many slots on every node. Where both files have one, placements count."""
    placements = _read(folder / f"placements-{kind}.csv")
    digits = [[int(digit) for digit in str(int(placement))] for placement in placements["placement"]]
    balanced = np.array([len(set(one)) == 1 for one in digits])
    shapes = [(len(one), sum(one)) for one in digits if len(set(one)) == 1]
    scalability = _read(folder / f"scalability-{kind}.csv")
    sizes = zip(scalability["num_nodes"].astype(int), scalability["num_replicas"].astype(int), strict=True)
    return {
        **_curves(list(sizes), scalability),
        **_curves(shapes, {column: values[balanced] for column, values in placements.items()}),
    }


def _curves(shapes: Sequence[Shape], table: Mapping[str, FloatArray]) -> dict[Shape, _Curve]:
    rows_of: dict[Shape, list[int]] = {}
    for row in np.argsort(table["local_bsz"], kind="stable"):
        rows_of.setdefault(shapes[row], []).append(int(row))
    return {
        shape: _Curve(table["local_bsz"][rows], table["step_time"][rows], table["sync_time"][rows])
        for shape, rows in rows_of.items()
    }


def _curve(measured: Mapping[Shape, _Curve], shape: Shape) -> _Curve:
    """The curve of a shape: measured, or between those of the next smaller and larger number of such nodes."""
    if shape in measured:
        return measured[shape]
    nodes, slots = shape
    alike = sorted(one for one in measured if one[1] * nodes == slots * one[0])
    below = max((one for one in alike if one[0] < nodes), default=None)
    above = min((one for one in alike if one[0] > nodes), default=None)
    if below is None or above is None:
        raise NoData(
            f"{slots} slots on {nodes} nodes were not measured, nor a smaller and a larger such shape"
        )
    first, second = measured[below], measured[above]
    batches, of_first, of_second = np.intersect1d(first.local_batch, second.local_batch, return_indices=True)
    part = (nodes - below[0]) / (above[0] - below[0])
    return _Curve(
        batches,
        (1 - part) * first.step_s[of_first] + part * second.step_s[of_second],
        (1 - part) * first.sync_s[of_first] + part * second.sync_s[of_second],
    )


def _step_s(curve: _Curve, slots: int, batches: FloatArray) -> FloatArray:
    """Seconds of a step (M,) of each global batch on so many slots; infinite where a slot would have too few samples.

    A slot that cannot hold its share takes it in several passes.
    """
    share = batches / slots
    passes = np.ceil(share / curve.local_batch[-1])
    local = share / passes
    step_s = np.interp(local, curve.local_batch, curve.step_s)
    compute_s = step_s - np.interp(local, curve.local_batch, curve.sync_s)
    enough = local >= curve.local_batch[0]
    return np.asarray(np.where(enough, step_s + (passes - 1) * compute_s, np.inf))


def _read(file: Path) -> dict[str, FloatArray]:
    """The columns of a file of numbers, by name."""
    if not file.is_file():
        raise NoData(f"{file} is missing")
    with file.open(newline="") as lines:
        header, *rows = list(csv.reader(lines))
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(header))
    return dict(zip(header, values.T, strict=True))
